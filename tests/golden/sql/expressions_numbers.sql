-- Numbers: value and type must be PostgreSQL's exactly.
-- no table
width_bucket(5.35, 0.024, 10.06, 5)
width_bucket(5.35::float8, 0.024, 10.06, 5)
width_bucket(-1, 0, 10, 5)
width_bucket(10, 0, 10, 5)
width_bucket(3, 10, 0, 5)
width_bucket(15, array[10, 20, 30])
gcd(12, 18)
gcd(0, 0)
gcd(-12, 18)
lcm(4, 6)
lcm(0, 5)
gcd(12::bigint, 18)
factorial(5)
factorial(20)
mod(7, -3)
mod(-7::bigint, 3)
7 % 3.5
scale(1.500)
min_scale(1.500)
1 << 3
16::bigint >> 2
5::smallint & 3::smallint
~ 5::bigint
|/ 16.0
||/ 27.0
+ 5
+ 2.5
round(2.5::numeric)
round(-0.5)
round(1.45, 1)
round(-1.45, 1)
round(15, -1)
round(25, -1)
trunc(15.99)
trunc(-15.99)
trunc(15.99, 1)
trunc(155, -1)
trunc(2.9::float8)
ceil(-0.5)
floor(-0.5)
sign(0)
sign(-3)
abs(-3::smallint)
abs(-3::bigint)
div(9, 4)
div(-9, 4)
div(9.5, 2)
cbrt(27)
log(2, 64)
numeric '1.50'
1.0::int
5 / 2 * 2.0
-5 / 2
5.0 / 2.5
2 * 3 + 4 - 5
1 + 2 * 3 % 2
2 ^ 3 ^ 2
-2 ^ 2
(1 + 2) * 3
1.5e3
1_000
0x1F
0b101
0o17
.5
5.
1e-3
123456789012345678901234567890
greatest(1, 2.5)
least(1::bigint, 2)
greatest(null::int, 5)
greatest(1.5::float8, 2)
num_nulls(1, null, 2)
num_nonnulls(1, null, 2)
5 between symmetric 1 and 10
5 not between symmetric 10 and 6
1 is distinct from 1
1 is not distinct from null
null is unknown
true is not unknown
(1 = 1) is unknown
(1, 2) is distinct from (1, 3)
(1, null) is not distinct from (1, null)
(1, 2) <> (1, 3)
(1, 2, 3) <= (1, 2, 3)
(1, null) < (2, 1)
row(1, null) is null
row(null, null) is null
row(1, 2) is not null
row(1, null) is not null
1 < 2 and 2 < 3
not true or true
1 <> 2
1 != 2
true > false
true::text
1::text || 'a'
'1e3'::float8
'1e3'::numeric
' 7 '::smallint
1.5::real
1.5::float4::float8
0.1::real::float8
3.0::float8::numeric
0.1::float8::numeric
123.456::real::numeric
1e10::numeric(20,5)
12.5::bigint
-12.5::smallint
32767.4::smallint
'12'::numeric + 1
'1'::int + '2'
5::float8 / 2
2.0 * 3.00
1.1 - 1.1
0.0 * 5
1 / 3 * 3
pi() > 3
radians(0)
-- table n
b - i
abs(i::bigint)
i::numeric / 4
e::text
round(e, 3)
trunc(e, 2)
trunc(d)
ceil(e)
floor(e)
d between -1 and 1
i between symmetric 7 and -7
i is distinct from s
i & s
i | 1
b # 5
~ b
i << 1
b >> 3
mod(b, 7)
d % 1
to_hex(i)
width_bucket(d, 0, 3, 3)
width_bucket(f, 0, 4, 4)
greatest(i, b, d)
least(f, d)
nullif(d, 2.5)
nullif(f, 2.5)
coalesce(s, i, b)
case when d > 0 then i when d < 0 then b end
case i when 7 then 'seven' when 10 then 'ten' else 'other' end
i = any(array[7, 10, null])
i <> all(array[7, 10])
i > any(array[5, 6])
f::text
r::text
d::float8
e::float8::numeric
f::numeric
r::numeric
i::boolean
bo::int
bo and d > 0
bo is unknown
(i, d) < (s, e)
(i, s) = (s, i)
(i, s) is distinct from (s, i)
i is null or d is null
num_nulls(i, d, f)
sign(i)
scale(d)
min_scale(d)
