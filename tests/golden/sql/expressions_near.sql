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
power(2.0, 3)
power(2.5, 0.5)
2 ^ 3.5
2.0 ^ 10
sqrt(2.0)
sqrt(16.0)
sqrt(0.0)
exp(1.0)
ln(2.0)
log(100.0)
log(2.0, 64.0)
log10(1000.0)
log(2.5)
cbrt(2)
cot(1)
asinh(1)
acosh(2)
atanh(0.5)
1.0 / 3.0
2 / 3.0
1e10::numeric / 7
100.0 / 0.3
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
sqrt(abs(d))
d / 7
ln(abs(d) + 1)
