"""How tables and views are filled while their upstream goes on changing."""
