"""Who holds which slots, across crashes: grants, their journal, and the rules for changing them."""
