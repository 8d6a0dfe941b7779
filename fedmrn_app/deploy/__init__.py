"""Deployment on real devices with the command `fedmrn-deploy`: keys, certificates, services and status."""
