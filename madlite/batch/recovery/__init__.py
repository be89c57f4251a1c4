"""What an earlier madlite left behind: found, told of, ended and removed."""
