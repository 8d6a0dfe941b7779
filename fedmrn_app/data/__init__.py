"""Data sets as arrays mapped from disk, and their partitions over clients."""
