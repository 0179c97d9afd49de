"""INSERT, UPDATE, DELETE and COPY FROM STDIN: rows that users write, statement by statement."""
