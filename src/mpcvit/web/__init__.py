"""A page on this machine for the owner of the pictures: drop them, see what they are."""
