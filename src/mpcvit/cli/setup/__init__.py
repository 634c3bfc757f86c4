"""Commands that set a machine up: certificates, a dealer, configurations, and checks."""

from mpcvit.cli.setup import certs, configs, dealer, doctor
