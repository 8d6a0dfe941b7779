"""Real devices: keys, certificates, services, and what an operator asks of them; the command is `fedmrn-deploy`."""
