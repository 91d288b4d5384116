"""Request guards, deadlines, slow clients, response writing."""
