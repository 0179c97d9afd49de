-- jsonb: value and type must be PostgreSQL's exactly.
-- no table
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb -> 'a'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb -> 'a' -> 'b'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb -> 'a' -> 'b' -> 1
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb -> 'a' -> 'b' ->> 1
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb -> 'a' ->> 'b'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb ->> 'a'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb #> '{a,b}'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb #> '{a,b,-1}'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb #>> '{a,b,1}'
'{"a": {"b": [1, 2.50, "x"]}}'::jsonb #>> array['a', 'b']
'{"a": 1}'::jsonb #> '{}'
'[1, 2, 3]'::jsonb -> 0
'[1, 2, 3]'::jsonb -> -1
'[1, 2, 3]'::jsonb -> 9
'[1, 2, 3]'::jsonb -> 'a'
'{"1": "one"}'::jsonb -> 1
'{"1": "one"}'::jsonb ->> '1'
'"str"'::jsonb ->> 0
'"str"'::jsonb #>> '{}'
'{"a": "x\"y\\z\n"}'::jsonb -> 'a'
'{"a": "x\"y\\z\n"}'::jsonb ->> 'a'
'{"a b": {"c,d": "e: f"}}'::jsonb -> 'a b'
'{"a": [{"b": "x, y"}, {"c": "[1]"}]}'::jsonb -> 'a'
'{"a": null}'::jsonb -> 'a'
'{"a": null}'::jsonb ->> 'a'
'{"a": 12345678901234567890.123450}'::jsonb -> 'a'
'{"a": "\u00e9\u0001"}'::jsonb -> 'a'
'{"a": {"b": "\u0001\u001f\\u001F"}}'::jsonb -> 'a'
'{"a": 1, "b": 2}'::jsonb ? 'a'
'{"a": 1, "b": 2}'::jsonb ? 'z'
'["a", "b", 1]'::jsonb ? 'b'
'["a", "b", 1]'::jsonb ? '1'
'"a"'::jsonb ? 'a'
'{"a": 1, "b": 2}'::jsonb ?| array['z', 'b']
'{"a": 1, "b": 2}'::jsonb ?& array['a', 'b']
'{"a": 1, "b": 2}'::jsonb ?& array['a', 'z']
'{"a": 1, "b": {"c": [1, 2]}}'::jsonb @> '{"b": {"c": [2]}}'
'{"a": 1, "b": {"c": [1, 2]}}'::jsonb @> '{"b": {"c": [3]}}'
'[1, 2, [3]]'::jsonb @> '[[3]]'
'[1, 2, 3]'::jsonb @> '3'
'[1, 2, 3]'::jsonb @> '[3, 3, 1]'
'{"a": 1.0}'::jsonb @> '{"a": 1}'
'{"a": [1]}'::jsonb @> '{"a": 1}'
'"x"'::jsonb @> '"x"'
'{"a": "1"}'::jsonb @> '{"a": 1}'
'{}'::jsonb @> '{}'
'[]'::jsonb @> '{}'
'{"a": 1}'::jsonb <@ '{"a": 1, "b": 2}'
'{"a": 1}'::jsonb = '{"a": 1.0}'
'{"a": 1, "b": 2}'::jsonb = '{"b": 2, "a": 1}'
'{"a": 1}'::jsonb <> '{"a": 2}'
'[1, 1.10]'::jsonb = '[1.0, 1.1]'
'"1.0"'::jsonb = '"1.00"'
'{"a": 1}'::jsonb is distinct from null
'{"a": 1, "b": 2}'::jsonb || '{"b": 3, "c": 4}'
'[1, 2]'::jsonb || '[3]'
'[1, 2]'::jsonb || '3'
'1'::jsonb || '[2]'
'{"a": 1}'::jsonb || '[2]'
'1'::jsonb || '2'
'{}'::jsonb || '{"aa": 1, "b": 2}'
'{"a": 1, "b": 2}'::jsonb - 'a'
'["a", "b", "a"]'::jsonb - 'a'
'[1, 2, 3]'::jsonb - 0
'[1, 2, 3]'::jsonb - -1
'{"a": 1, "b": 2, "c": 3}'::jsonb - array['a', 'c']
'{"a": {"b": 1, "c": 2}}'::jsonb #- '{a,b}'
'[1, [2, 3]]'::jsonb #- '{1,0}'
jsonb_typeof('{"a": 1}'::jsonb)
jsonb_typeof('[1]'::jsonb)
jsonb_typeof('"a"'::jsonb)
jsonb_typeof('1.5'::jsonb)
jsonb_typeof('true'::jsonb)
jsonb_typeof('null'::jsonb)
jsonb_array_length('[1, [2, 3], {}]'::jsonb)
jsonb_array_length('[]'::jsonb)
jsonb_extract_path('{"a": {"b": 1}}'::jsonb, 'a', 'b')
jsonb_extract_path_text('{"a": {"b": "x"}}'::jsonb, 'a', 'b')
jsonb_build_object('a', 1, 'bb', 'x', 'c', null)
jsonb_build_object('b', true, 'a', 2.50, 'b', 3)
jsonb_build_object('a', array[1, 2], 'd', date '2024-01-01')
jsonb_build_object()
jsonb_build_array(1, 'a', null, true, 2.50, '{"x": 1}'::jsonb)
jsonb_build_array()
to_jsonb(1)
to_jsonb('a"b'::text)
to_jsonb(2.50)
to_jsonb(1.5::float8)
to_jsonb('NaN'::float8)
to_jsonb(true)
to_jsonb(date '2024-01-01')
to_jsonb(timestamp '2024-01-01 10:11:12.5')
to_jsonb(timestamptz '2024-01-01 10:11:12+00')
to_jsonb(array[1, null, 2])
to_jsonb(array['a', 'b'])
to_jsonb('{"a": 1}'::jsonb)
to_jsonb(null::int)
to_jsonb(interval '1 day')
to_jsonb(E'tab\tnl\nq"b\\'::text)
jsonb_set('{"a": {"b": 1}}'::jsonb, '{a,b}', '2')
jsonb_set('{"a": {"b": 1}}'::jsonb, '{a,c}', '2')
jsonb_set('{"a": {"b": 1}}'::jsonb, '{a,c}', '2', false)
jsonb_set('[1, 2, 3]'::jsonb, '{1}', '"x"')
jsonb_set('[1, 2, 3]'::jsonb, '{-1}', '"x"')
jsonb_set('{"a": 1}'::jsonb, '{x,y}', '2')
jsonb_insert('{"a": [1, 2]}'::jsonb, '{a,1}', '9')
jsonb_insert('{"a": [1, 2]}'::jsonb, '{a,1}', '9', true)
jsonb_object('{a,1,b,2}'::text[])
jsonb_object(array['a', 'b'], array['1', null])
'5'::jsonb::int
'5.5'::jsonb::numeric
'true'::jsonb::boolean
'2.7'::jsonb::int
'1.5'::jsonb::float8
('{"a": 5}'::jsonb -> 'a')::int
('{"a": "5"}'::jsonb ->> 'a')::int
('{"a": "x"}'::jsonb -> 'a')::text
'[1, 2]'::jsonb::text
('{"a": [1, 2]}'::jsonb)['a'][1]
('{"a": {"b": 2}}'::jsonb)['a']['b']
json_typeof('[1]'::json)
jsonb_exists('{"a": 1}'::jsonb, 'a')
jsonb_contains('{"a": 1}'::jsonb, '{}')
coalesce('{"a": null}'::jsonb -> 'a', '1'::jsonb)
jsonb_strip_nulls('{"a": 1, "b": null}'::jsonb)
-- table x
j -> 'a'
j -> 'c'
j ->> 'c'
j -> 'c' -> 0
j #> '{c,1}'
j #>> '{c,1}'
j ? 'a'
j ?| array['b', 'q']
j ?& array['a', 'b']
j @> '{"a": 1}'
j @> '{"c": [2]}'
j <@ '{"a": 1, "b": "x", "c": [1, 2, 3], "d": null, "e": true, "f": 1}'
j = '{"b": 250.0}'
j || '{"z": 1}'
j - 'a'
j - array['a', 'b']
jsonb_typeof(j -> 'a')
jsonb_typeof(j -> 'd')
jsonb_build_object('id', id, 't', t, 'l', l, 'p', p, 'j', j)
jsonb_build_array(id, t, u, l, j)
to_jsonb(t)
to_jsonb(l)
to_jsonb(tl)
to_jsonb(q)
to_jsonb(z)
to_jsonb(j)
jsonb_set(j, '{a}', to_jsonb(id))
j -> u
j ->> tl[1]
j::text
(j ->> 'a')::text
(j -> 'a') is null
j is null
jsonb_extract_path_text(j, 'c', '0')
