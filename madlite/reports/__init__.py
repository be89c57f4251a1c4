"""Results files → what people read: a page, a mail."""
