"""Who may connect to a host: certificates, the list of allowed peers, and the listening port.

Nothing here imports SPU or JAX: a dealer's host needs neither.
"""
