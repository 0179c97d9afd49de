"""PostgreSQL as a source: schemas, snapshot chunks by COPY, and changes by pgoutput."""
