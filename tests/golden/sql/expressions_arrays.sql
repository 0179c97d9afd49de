-- Arrays: value and type must be PostgreSQL's exactly.
-- no table
'{1,2,3}'::int[]
'{a,"b c",null,"NULL"}'::text[]
'{}'::int[]
array[]::int[]
array[1, 2, 3]::text
array['a', 'b c', null, 'it''s "q"']::text
array[1, 2]::bigint[]
array[1.5, 2]::int[]
array['1', '2']::int[]
array_prepend(0, array[1])
array_append(array[1, 2], null)
array_cat(array[1], array[2, 3])
array_replace(array[1, 2, 1], 1, 9)
array_replace(array[1, null], null, 9)
array_positions(array[1, 2, 1], 1)
array_position(array[1, 2, 1], 1, 2)
array_position(array[1, null], null)
array_remove(array[1, null, 2], null)
array_ndims(array[1, 2])
array_dims(array[1, 2])
array_lower(array[1, 2], 1)
array_upper(array[1, 2], 1)
array_length(array[]::int[], 1)
array_length(array[1], 2)
array_fill(7, array[3])
trim_array(array[1, 2, 3], 1)
array_to_string(array['a', null, 'b'], ',', 'x')
array_reverse(array[1, 2, 3])
array_sort(array[3, 1, null, 2])
cardinality(array[]::int[])
(array[1, 2, 3])[2:]
(array[1, 2, 3])[:2]
(array[1, 2, 3])[-1]
(array[1, 2, 3])[3:1]
array[1, 2] || null::int[]
array[1, 2] || null
array[1, 2] = array[1, 2]
array[1, null] = array[1, null]
array[1, 2] <> array[1, 3]
array[1, 2] < array[1, 2, 0]
array[1, null] < array[2, 1]
array[2] > array[1, 5]
array[1, 2] is distinct from array[1, 2]
array[1, 2] @> array[]::int[]
array[1, null] @> array[null]::int[]
array[1] <@ array[1, 2]
array[1, 2] && array[3]
array[null]::int[] && array[null]::int[]
3 = any('{1,2,3}')
3 > all('{1,2}'::int[])
null = any(array[1])
1 = any(null::int[])
1 = all(array[]::int[])
1 = any(array[]::int[])
2 in (1, 2) = any(array[true])
greatest(array[1, 2], array[1, 3])
array[array[1, 2], array[3, 4]]
(array[array[1, 2], array[3, 4]])[2][1]
cardinality(array[array[1, 2], array[3, 4]])
array_length(array[array[1, 2], array[3, 4]], 2)
coalesce(null::int[], array[1])
case when true then array[1] else '{2}' end
-- table x
l[1:2]
l[id]
l[-1]
l[2:]
array_prepend(id, l)
array_append(l, id)
array_cat(l, array[id])
array_replace(l, 5, null)
array_positions(l, 1)
array_position(l, null)
array_remove(l, null)
array_dims(l)
array_upper(l, 1)
array_lower(l, 1)
l::text
tl::text
l::bigint[]
l::text[]
tl || 'q'::varchar
tl || array['q']
'q'::varchar || tl
id || l
l = array[1, 2, 3]
l < array[2]
l is distinct from array[7]
l @> array[1, 2]
l <@ array[1, 2, 3, 5]
tl && array['a', 'z']::varchar[]
id = any(l)
id <> all(l)
id < any(l)
'z' = any(tl)
'a%' like any(tl)
array_to_string(tl, ',')
array_to_string(l, ',', '*')
cardinality(tl)
array_ndims(l)
array_reverse(l)
array_sort(l)
coalesce(l, array[0])
array_length(l, 1)
