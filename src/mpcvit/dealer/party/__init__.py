"""A party's side of a dealer: the client, the material it fetches, and the gateway for SPU."""
