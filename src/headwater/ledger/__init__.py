"""What is true: one record per committed epoch, and who may write the next."""
