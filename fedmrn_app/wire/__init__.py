"""Plain bytes: the formats of payloads and of the downlink, how they are packed, and how they are checked."""
