"""Other ways to train the model of a generated program, each a script that one rank of it runs."""
