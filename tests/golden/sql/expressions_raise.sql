-- Expressions, one per line, that are errors in PostgreSQL and must be errors here.
1 / 0
1.0 / 0
1.0::float8 / 0
2147483647 + 1
9223372036854775807 + 1
-2147483648 - 1
32767::smallint + 1::smallint
'abc'::int
'1.5'::int
t::int from (values ('x1')) v(t)
t::boolean from (values ('maybe')) v(t)
t::date from (values ('2024')) v(t)
t::date from (values ('2024-13-01')) v(t)
t::float8 from (values ('1d')) v(t)
'2024-02-30'::date
'nonsense'::boolean
1e10::float8::int
'NaN'::float8::int
99999.9::numeric(4,1)
1e300::float8 * 1e300::float8
substring('abc', 1, -1)
split_part('abc', ',', 0)
sqrt(-1)
ln(0)
1 + 'x'
'a' + 1
upper(1)
1 = 'a'
true = 1
date '2024-01-01' = 1
nosuchfunction(1)
case when 1 then 2 end
array[1, 'x']
(1, 2) = (1, 2, 3)
1 and 2
-true
generate_series(1, 2, 0) from (values (1)) v(a)
(select a from (values (1), (2)) v(a))
