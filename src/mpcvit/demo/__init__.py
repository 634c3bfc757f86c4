"""What a newcomer sees first: networks that ship with the package classify images privately."""
