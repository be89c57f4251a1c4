"""Card, machine and options → a frozen plan, and the plan → the files of its run folder."""
