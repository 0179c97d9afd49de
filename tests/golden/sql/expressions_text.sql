-- Text: value and type must be PostgreSQL's exactly.
-- no table
format('Hello %s, %s', 'a', 1)
format('%I = %L', 'a b', 'it''s')
format('%s %% %s', null, 2)
format('%2$s %1$s', 'a', 'b')
format('[%5s|%-5s]', 'ab', 'cd')
format('%L', null)
format('plain')
initcap('hello wORLD-foo bar_baz x2y')
initcap('élan vital')
quote_ident('abc')
quote_ident('Abc d')
quote_ident('a"b')
quote_ident('select')
quote_literal('it''s')
quote_literal('back\slash')
quote_literal(42)
quote_nullable(null)
quote_nullable('x')
sha256('abc'::bytea)
sha224('abc'::bytea)
sha384('abc'::bytea)
sha512('abc'::bytea)
encode('abc'::bytea, 'base64')
encode('\x00ff10'::bytea, 'escape')
encode('\x00ff10'::bytea, 'hex')
decode('YWJj', 'base64')
decode('00ff', 'hex')
encode(sha256('abc'::bytea), 'hex')
md5('abc'::bytea)
to_hex(255)
to_hex(-1)
to_hex(255::bigint)
to_bin(5)
to_oct(64)
string_to_array('a,b,,c', ',')
string_to_array('a,b,,c', ',', '')
string_to_array('abc', null)
string_to_array('', ',')
string_to_array('abc', '')
regexp_match('foobarbequebaz', 'bar.*que')
regexp_match('foobarbequebaz', '(bar)(beque)')
regexp_match('abc', 'x')
regexp_match('ABC', 'b', 'i')
(regexp_match('foo123', '([a-z]+)([0-9]+)'))[2]
regexp_replace('foobarbaz', 'b..', 'X')
regexp_replace('foobarbaz', 'b..', 'X', 'g')
regexp_replace('foobarbaz', 'b(..)', 'X\1Y', 'g')
regexp_replace('abc', 'z', 'X')
regexp_replace('a.b.c', '\.', '-')
regexp_split_to_array('hello world foo', '\s+')
regexp_split_to_array('a1b22c', '[0-9]+')
regexp_split_to_array('abc', '')
regexp_substr('foobar', 'o+')
regexp_substr('foobar', 'z')
regexp_substr('abcdef', '[a-c]', 1, 2)
regexp_instr('foobar', 'o+')
regexp_instr('foobar', 'z')
regexp_count('abcabc', 'b')
regexp_like('Hello', '^h', 'i')
regexp_like('Hello', '^h')
substring('foobar' from 'o(.)b')
substring('foobar' from 'o.b')
substring('foobar' from 'z')
substring('foobar', 'o(.)b')
'abc' similar to 'abc'
'abc' similar to 'a'
'abc' similar to '%(b|d)%'
'abc' similar to '(b|c)%'
'abc' not similar to '_b_'
'a.c' similar to 'a.c'
'abc' similar to 'a.c'
'aab' similar to 'a+b'
'a%' similar to 'a!%' escape '!'
'abc' like any (array['a%', 'x'])
'abc' like all (array['a%', '%c'])
'abc' not like all (array['b%', '%d'])
'ABC' ilike any (array['a%', 'x'])
'abc' !~* 'B'
'abc' !~ 'B'
'abc' ~~ 'a%'
'abc' !~~ 'a%'
'ABC' ~~* 'a%'
'ABC' !~~* 'a%'
'foo' ^@ 'fo'
'a-b' ~ 'a\-b'
'x1' ~ '\d'
'x 1' ~ '\s\d$'
'abc' ~ 'a|z'
'aXb' ~ '\w[A-Z]\w'
'café' ~ 'é$'
'word boundary' ~ '\ybound'
'word' ~ '\mword\M'
'abc' ~ '[[:alpha:]]+'
'ab1' ~ '^[[:alnum:]]+$'
'aa' ~ '(a)\1'
'abc' ~ '(?i)ABC'
casefold('ABC')
overlay('abcdef' placing 'XX' from 1 for 0)
position('b' in 'abc')
concat_ws(', ', 1, null, true, 2.50)
concat(1.5, date '2024-01-01', null, false)
lpad('5', 3, '0')
rpad('é', 3, 'ß')
lpad('abc', -1)
repeat('a', 0)
reverse('aßc')
left('abc', 0)
right('abc', 0)
left('', 2)
split_part('a~@~b~@~c', '~@~', -2)
split_part('', ',', 1)
translate('abc', 'abc', 'x')
translate('aabbcc', 'ab', 'ba')
trim(from '  x ')
trim('xy' from 'xyaxy')
ltrim('  a')
btrim('  a  ')
ascii('é')
ascii('€')
chr(65)
char_length('日本')
octet_length('日本')
bit_length('ab')
length('\x00ff'::bytea)
substring('\x001122'::bytea from 2 for 1)
'\x00'::bytea || '\x01'::bytea
get_byte('\x1234'::bytea, 1)
'a' < 'B'
'a' collate "C" < 'B'
'abc' > 'ab'
'Z' < 'a'
lower('ÀÉ')
starts_with('abc', '')
strpos('abc', '')
'a' || 1.5 || true
'x' || date '2024-01-01'
1 || 'x'
'a' || array[1,2]::text
substring('foobar' from 'foo|foobar')
E'a\n' ~ 'a$'
-- table x
format('%s-%s', t, id)
initcap(t)
quote_literal(t)
quote_ident(u)
string_to_array(t, ',')
string_to_array(t, ' ')
regexp_replace(t, '[aeiou]', '*')
regexp_replace(t, '[aeiou]', '*', 'g')
regexp_match(t, '(.)o')
regexp_split_to_array(t, '[, ]+')
regexp_count(t, 'o')
substring(t from '[a-z]+')
t similar to '%o%'
t like any (array['h%', 'a%'])
t like '%' || u || '%'
t ilike '%' || upper(u) || '%'
encode(convert_to(t, 'UTF8'), 'hex')
encode(y, 'base64')
md5(y)
sha256(y)
overlay(t placing u from 2 for 3)
lpad(t, 12, '.')
to_hex(id)
translate(t, 'aeiou', 'AEIOU')
left(t, id)
right(t, -id)
repeat(u, id)
ascii(t)
split_part(t, ' ', -1)
t || y::text
char_length(t)
position('o' in t)
concat_ws('/', t, u, id, p, q, z)
coalesce(t, u, 'z')
greatest(t, u)
least(t, u, 'm')
t between 'a' and 'z'
