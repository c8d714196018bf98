"""What can be attended beyond a plain sequence: facts, slots that can be written, trees."""
