"""Checks of a machine before something is measured on it: what is here, what is right and who says so.

`checks.toml` is the table of checks; a check is an entry of it and the function of the same name in `host`, `gpus`
or `software`.  `examine` calls those that apply to the machine.  Nothing here changes the machine.
"""
