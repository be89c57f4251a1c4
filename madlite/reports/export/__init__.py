"""Results → the formats of other programs: files, tables of databases, what a plugin brings."""
