-- Expressions, one per line: value and type must be PostgreSQL's exactly.
-- no table
1 + 1
2147483647 + 0
7 / 2
-7 / 2
7 % -3
-7 % 3
1.5 + 2
1.10 * 3
2.5 - 10
0.1 + 0.2
12345678901
1e3
-5
- (-5)
2 ^ 10
5 & 3
5 | 3
5 # 3
~5
1 << 4
-16 >> 2
'abc' || 'def'
'n=' || 7
'x' || null
1 = 1.0
1 < 2.5
'a' < 'b'
'7' = 7
7 = '7'
date '2024-01-01' < '2024-01-02'
null is null
1 is distinct from null
null is not distinct from null
5 between 1 and 10
5 between symmetric 10 and 1
5 not between 6 and 7
5 in (1, 2, 5)
5 in (1, null)
5 not in (1, null)
(1, 2) = (1, 2)
(1, 2) < (1, 3)
(1, null) = (2, 2)
row(1, 2) >= row(1, 2)
(1, 2) in ((1, 2), (3, 4))
true and null
false and null
true or null
not null::boolean
null is true
true is not false
(1 = 1) is true
case when 1 = 2 then 'a' when null then 'b' else 'c' end
case 3 when 1 then 1 when 3 then 2.5 end
coalesce(null, 5)
coalesce(null, null, 'x')
nullif(5, 5)
nullif(5, 6)
greatest(1, null, 3)
least(2, 1.5)
greatest('a', 'b')
2.5::int
3.5::int
-2.5::int
2.5::float8::int
3.5::float8::int
(-2.5)::int
'  42 '::int
'12.345'::numeric(6,2)
1.005::numeric(10,2)
-1.005::numeric(10,2)
1::boolean
0::boolean
true::int
'yes'::boolean
'off'::boolean
true::text
1.50::text
1e15::float8::text
1e14::float8::text
123456.789::float8::text
0.0001::float8::text
0.00001::float8::text
1e-10::float8::text
'NaN'::float8::text
'infinity'::float8::text
'-infinity'::float8::text
1.5e300::float8::text
100::float8::text
1234567::float8::text
12345678::float8::text
0.1::real::text
1e6::real::text
123456::real::text
1234567::real::text
1e10::real::text
'abc'::varchar(2)
123::varchar(2)
date '2024-02-29'::text
timestamp '2024-02-29 01:02:03.5'::text
timestamptz '2024-02-29 01:02:03+00'::text
timestamptz '2024-02-29 01:02:03+05:30'
timestamp '2024-02-29 01:02:03'
'2024-02-29'::date
'2024-2-9'::date
'\x00ff'::bytea
'\x00ff'::bytea::text
upper('abc')
lower('ABC')
length('hello')
char_length('Straße')
octet_length('Straße')
reverse('abc')
repeat('ab', 3)
repeat('ab', -1)
replace('hello', 'l', 'L')
replace('hello', '', 'x')
translate('12345', '143', 'ax')
substring('hello', 2, 3)
substring('hello', 0, 3)
substring('hello', -2, 5)
substring('hello' from 2)
substring('hello' for 2)
substring('hello', 10)
substr('hello', -3)
left('hello', 2)
left('hello', -2)
left('hello', -10)
right('hello', 2)
right('hello', -2)
position('l' in 'hello')
position('' in 'hello')
strpos('hello', 'z')
split_part('a,b,c', ',', 2)
split_part('a,b,c', ',', -1)
split_part('a,b,c', ',', 9)
split_part('abc', '', 1)
trim('  x  ')
trim(both 'x' from 'xxaxx')
trim(leading 'x' from 'xxaxx')
trim(trailing 'x' from 'xxaxx')
ltrim('zzabc', 'z')
rtrim('abczz', 'z')
btrim('xyabcyx', 'xy')
trim(both '' from 'xx')
lpad('abc', 5)
lpad('abc', 5, 'xy')
lpad('abc', 2, 'x')
rpad('abc', 5, 'xy')
rpad('abc', 5, '')
concat('a', null, 1, true)
concat_ws(',', 'a', null, 'b')
concat_ws(null, 'a', 'b')
ascii('a')
ascii('')
chr(233)
chr(8364)
md5('abc')
starts_with('hello', 'he')
overlay('abcdef' placing 'XX' from 2 for 3)
overlay('abcdef' placing 'XX' from 2)
'abc' like 'a%'
'abc' like 'a_c'
'a%c' like 'a\%c'
'abc' like 'a!%c' escape '!'
'a%c' like 'a!%c' escape '!'
'ABC' ilike 'a%'
'abc' not like 'b%'
'abc' ~ '^a.c$'
'ABC' ~* '^a'
'abc' !~ 'b'
regexp_replace('abcabc', 'b', 'X', 'g')
regexp_replace('abc', '(b)(c)', '\2\1', 'g')
date '2024-01-31' + 1
date '2024-03-01' - date '2024-02-01'
date '2024-03-01' - 1
date '2024-01-31' + interval '1 month'
timestamp '2024-01-31 10:00:00' + interval '1 month 2 days 03:04:05'
timestamp '2024-03-31 10:00:00' - interval '1 month'
timestamptz '2024-01-31 10:00:00+00' + interval '1 hour'
timestamp '2024-01-03 10:00:00' - timestamp '2024-01-01 12:30:00'
timestamp '2024-01-01 10:00:00' - timestamp '2024-01-03 12:30:00.5'
interval '1 day 2 hours'
interval '1 year 2 months 3 days 04:05:06.789'
interval '-1 month 5 days'
interval '1.5 days'
interval '90 minutes'
interval '1' month
interval '1 day' + interval '2 hours'
interval '1 day' * 3
- interval '1 day'
interval '1 month' > interval '29 days'
interval '1 day' = interval '24 hours'
extract(year from date '2024-02-29')
extract(month from timestamp '2024-02-29 13:05:07.5')
extract(second from timestamp '2024-02-29 13:05:07.5')
extract(epoch from timestamp '2024-02-29 13:05:07.5')
extract(epoch from interval '1 day 2 hours')
extract(epoch from interval '1 year 1 month')
extract(dow from date '2024-02-25')
extract(isodow from date '2024-02-25')
extract(doy from date '2024-12-31')
extract(week from date '2021-01-03')
extract(isoyear from date '2021-01-03')
extract(quarter from date '2024-05-01')
extract(century from date '2000-05-01')
extract(decade from date '1999-05-01')
extract(millisecond from timestamp '2024-02-29 13:05:07.5')
extract(microseconds from timestamp '2024-02-29 13:05:07.5')
extract(day from interval '3 days 25:00:00')
extract(hour from interval '3 days 25:00:00')
date_part('year', date '2024-02-29')
date_part('epoch', timestamp '2024-02-29 13:05:07.5')
date_trunc('month', timestamp '2024-02-29 13:05:07.5')
date_trunc('week', timestamp '2024-02-29 13:05:07.5')
date_trunc('quarter', date '2024-05-17')
date_trunc('milliseconds', timestamp '2024-02-29 13:05:07.123456')
date_trunc('day', timestamptz '2024-02-29 13:05:07+00')
timestamp '2024-07-01 12:00:00' at time zone 'Europe/Paris'
timestamptz '2024-07-01 12:00:00+00' at time zone 'America/New_York'
to_char(timestamp '2024-02-09 13:05:07.123456', 'YYYY-MM-DD HH24:MI:SS.US')
to_char(date '2024-02-09', 'YYYY/MM/DD')
to_timestamp(0)
to_timestamp(1700000000.5)
make_date(2024, 2, 29)
make_interval(1, 2, 0, 3)
timestamp '2024-01-01 10:11:12'::time
timestamp '2024-01-01 10:11:12'::date
abs(-5)
abs(-2.50)
sign(-2.5)
ceil(2.1)
ceil(-2.5)
floor(-2.5)
ceil(2.5::float8)
floor(-2.5::float8)
ceil(5)
round(2.5)
round(-2.5)
round(2.5::float8)
round(3.5::float8)
round(2.345, 2)
round(2.345, 5)
round(1234.5, -2)
trunc(2.789)
trunc(-2.789, 1)
trunc(-2.7::float8)
mod(7, 3)
mod(-7, 3)
mod(7.5, 2)
div(7, 2)
div(-7.5, 2)
power(2, 10)
sqrt(16)
pi()
array[1, 2, 3]
array[1, 2.5]
(array[1, 2, 3])[2]
(array[1, 2, 3])[0]
(array[1, 2, 3])[9]
(array[1, 2, 3])[2:3]
(array[1, 2, 3])[0:1]
array[1, 2] || array[3]
array[1, 2] || 3
0 || array[1]
array_append(array[1], 2)
cardinality(array[1, 2])
array_length(array[1, 2], 1)
array_length(array[1], 1)
array_position(array['a', 'b'], 'b')
array_position(array['a'], 'z')
array_remove(array[1, 2, 1], 1)
array_to_string(array[1, null, 3], ',')
array_to_string(array[1, null, 3], ',', '*')
2 = any(array[1, 2])
2 = any(array[1, null])
2 <> all(array[1, 3])
2 > all(array[1, null])
array[1, 2, 3] @> array[2]
array[1, 2] <@ array[1, 2, 3]
array[1, 2] && array[2, 5]
array[1, 2] = array[1, 2]
array[1, 2] < array[1, 3]
'{"b": 1, "aa": [1, 2.50], "a": "x"}'::jsonb
'{"a": "x"}'::jsonb ->> 'a'
'{"a": {"b": "x"}}'::jsonb -> 'a' ->> 'b'
'["p", "q"]'::jsonb ->> 1
'{"a": null}'::jsonb ->> 'a'
'{"a": true}'::jsonb ->> 'a'
'{"a": 1}'::jsonb ->> 'z'
'00000000-0000-0000-0000-00000000000A'::uuid
E'a\nb'
'it''s'
'back\slash'
1::smallint + 1::smallint
1::bigint + 1
1::real + 1::real
1 + 1::real
1::bigint * 1.5
null::int + 1
-- table n
i + 0
i - s
i / 7
b / 7
s / 2::smallint
i % 7
b % 10
s * 1
d + e
d - e
d * 2
e * 1.5
d * d
d = i
i > d
d < f
i = b
b > f
f > r
f = 2.5
r = 2.5
r = f
i::bigint * 2
i::text
b::text
s::text
d::text
e::text
bo::text
f::bigint
d::int
e::bigint
d::numeric(12,1)
i::numeric(20,2)
i::float8
b::float8
d::float8
i::numeric
abs(d)
abs(f)
abs(r)
-d
-f
-(i / 2)
round(d)
round(d, 1)
round(e, 2)
round(f)
ceil(d)
floor(d)
ceil(f)
floor(f)
trunc(d, 1)
sign(d)
sign(f)
coalesce(i, 0)
coalesce(d, i)
coalesce(i, f)
nullif(i, 7)
greatest(i, b)
least(i, d)
greatest(i, f)
case when i > 0 then i else d end
case when bo then 1 end
i between -7 and 7
i in (7, -7, null)
not bo
bo and i > 0
bo or i > 0
bo is not true
i is null
i is distinct from 7
d is distinct from 2.5
mod(i, 7)
mod(d, 2)
d % 2
i & 7
b | 1
s # 3
~i
(i, s) = (7, 7)
(i, s) < (7, 7)
(i, b) >= (0, 0)
i = any(array[7, 10])
'v' || i
'v' || d
concat(i, '-', d)
div(d, 2)
i::text || b::text
d::int::text
2.5 = d
i * 1.0
-- table x
t || u
t || '!'
upper(u)
length(t)
octet_length(t)
left(t, 3)
right(t, 3)
left(t, -2)
right(t, -2)
substring(t, 2, 3)
substring(t, 0, 3)
position(u in t)
strpos(t, u)
split_part(t, ',', 2)
split_part(t, u, 1)
replace(t, u, '*')
trim(t)
ltrim(t)
rtrim(t)
btrim(t, 'he')
lpad(t, 5, '*')
rpad(u, 3, '*')
reverse(t)
repeat(u, 2)
concat(t, u)
concat_ws('-', t, u, 'z')
t like '%o%'
t like 'a%'
t like '%\%%'
t ilike 'HELLO%'
t not like '%o%'
t > 'b'
t = ''
t ~ 'l+'
t is null
coalesce(t, 'none')
nullif(t, '')
starts_with(t, 'h')
md5(t)
translate(t, 'lo', '01')
t in ('', 'a,b,,c')
p + 1
p - 1
p - date '2000-01-01'
p + interval '1 month'
p + interval '-1 month'
q + interval '1 month 1 day 01:00:00'
q - interval '1 year'
q - p
q - timestamp '2000-01-01'
z - timestamptz '2000-01-01 00:00:00+00'
z + interval '36 hours'
p::text
q::text
z::text
q::date
z::date
p::timestamp
p::timestamptz
q::timestamptz
z::timestamp
q::time
p = q
p < z
extract(year from p)
extract(month from q)
extract(day from z)
extract(hour from q)
extract(minute from z)
extract(second from q)
extract(epoch from q)
extract(epoch from z)
extract(epoch from p)
extract(dow from p)
extract(doy from p)
extract(week from p)
extract(quarter from q)
extract(epoch from q - p)
extract(day from q - timestamp '2000-01-01')
date_part('hour', q)
date_trunc('hour', q)
date_trunc('month', z)
date_trunc('year', p)
to_char(q, 'YYYY-MM-DD HH24:MI:SS')
to_char(z, 'YYYYMMDD')
z at time zone 'Asia/Kolkata'
q at time zone 'Asia/Kolkata'
l[1]
l[2]
l[2:3]
cardinality(l)
array_length(l, 1)
1 = any(l)
5 <> all(l)
l || 9
l || l
l @> array[1]
l && array[5, 7]
array_position(l, 5)
array_to_string(l, '-')
array_to_string(tl, ',', '?')
tl[1]
y::text
octet_length(y)
length(y)
j ->> 'a'
j ->> 'b'
jsonb_typeof(j)
(p > date '2000-01-01') is true
greatest(p, date '2000-01-01')
least(q, timestamp '2000-01-01')
case when p > '2000-01-01' then q else z end
coalesce(q, p)
encode(y, 'hex')
