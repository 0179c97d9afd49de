"""When epochs end, who has answered, and what is committed."""
