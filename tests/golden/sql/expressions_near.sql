-- Expressions, one per line: numbers must agree with PostgreSQL's to 15 digits.
-- no table
1.0 / 3
7 / 2.0
22.5 / 7
1 / 3.0
exp(1)
ln(10)
log(100)
sqrt(2)
power(2.5::float8, 0.5::float8)
sin(1)
atan2(1, 2)
degrees(1)
7.0::float8 / 3
7.0::real / 2::real
-- table n
d / 7
i / 7.0
e / 3
d / 3.5
f / 3
f * 1.1
f + i
f - d
r * 2
sqrt(abs(f))
