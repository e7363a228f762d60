"""What an operator does with an installed release: an alert, the next version, and back."""
