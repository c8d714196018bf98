"""How good an answer is: thin covers over well-kept libraries, own code where there is none."""
