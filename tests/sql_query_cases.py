"""Queries for the comparison with PostgreSQL. Their result must not depend on open orders."""

QUERIES = [
    query.strip()
    for query in """
select * from t;
select b, a from t where c > 5 and b is not null;
select a + 1 as n, upper(b) from t where a < 10 order by 1;
select t.*, u.x from t join u on t.a = u.a;
select * from t, u where t.a = u.a and u.k = 1 and t.b = 'red';
select t.a, u.k, v.id from t, u, v where t.a = u.a and v.a = u.k and t.c is not null;
select t.a, u.k from t left join u on t.a = u.a;
select t.a, u.k from t left join u on t.a = u.a and u.x > 5 where t.a < 20;
select t.a, u.a as ua, u.k from t right join u on t.a = u.a;
select t.a, u.a as ua, u.k from t full join u on t.a = u.a and u.k = 0;
select a, k, b from t join u using (a);
select a, k, b from t left join u using (a);
select a, k, b from t full join u using (a);
select * from t natural join v;
select t.a, v.id from t cross join v where t.a + v.id = 20;
select x.a, y.a as ya from t x join t y on x.b = y.b and x.a < y.a;
select t.a, u.k, v.id from t left join (u join v on u.k = v.a) on t.a = u.a;
select t.a from t left join u on t.a = u.a where u.a is null;
select count(*) from t;
select count(*), count(b), count(distinct b), sum(a), sum(c), avg(a), avg(c), min(b), max(d) from t;
select count(*), sum(a), avg(a), min(a), array_agg(a), string_agg(b, ',') from empty;
select b, count(*), sum(c), avg(c), min(a), max(f) from t group by b;
select b, d, count(*) from t group by b, d having count(*) > 1;
select b, sum(a) filter (where c > 5), count(*) filter (where c is null) from t group by b;
select length(b) as n, count(*) from t group by length(b) order by 1;
select a % 3 as m, sum(a) + 1 as s, sum(a) * 2.0 / count(*) as r from t group by 1 order by 1;
select a % 3 as m, count(*) from t group by m having sum(c) > 50;
select sum(x), avg(x), sum(distinct x), count(distinct s) from u;
select k, sum(x), bool_and(x > 2), bool_or(x is null) from u group by k;
select b, array_agg(a order by a desc) from t group by b;
select b, array_agg(c order by c desc nulls last, a) from t group by b;
select k, string_agg(s, '-' order by a) from u group by k;
select b, array_agg(distinct a % 3 order by a % 3) from t group by b;
select t.a, t.b, count(u.k) from t left join u on t.a = u.a group by t.a;
select stddev(f), var_pop(f), stddev_pop(f), variance(f) from t;
select b, percentile_cont(0.5) within group (order by f) from t group by b;
select min(d), max(ts) from t, u where t.a = u.a;
select distinct b from t;
select distinct b, d from t where a < 30;
select distinct on (b) b, a, c from t order by b, a desc;
select distinct on (k) k, a, x from u order by k, x desc nulls last, a;
select b, d, count(*), sum(a) from t group by rollup (b, d);
select b, d, count(*), grouping(b), grouping(b, d) from t group by cube (b, d);
select b, k, count(*) from t join u on t.a = u.a group by grouping sets ((b), (k), ());
select b, count(*) from t group by grouping sets ((b), (b), ());
select a from t union all select a from v;
select a from t union select a from v;
select b from t union all select s from u union all select b from v;
select a, b from t intersect select a, b from v;
select b from t intersect all select b from v;
select a, b from v except select a, b from t;
select b from t except all select b from v;
select a from t where a < 5 union (select a from v except select 3) order by 1;
select 1 as n, 'x' as s union all select 2.5, null;
select a from t order by a desc limit 5;
select a from t order by c desc, a limit 5 offset 3;
select a, c from t order by c nulls first, a limit 6;
select a from (select a from t order by a limit 10) q where a > 5;
select a, c from t order by c desc nulls last fetch first 3 rows with ties;
select a, row_number() over (order by a) from t;
select a, row_number() over (partition by b order by c, a), rank() over (partition by b order by d) from t;
select a, dense_rank() over (order by d), ntile(4) over (order by a) from t;
select a, sum(c) over (partition by b order by a), avg(a) over (partition by b), count(*) over () from t;
select a, lag(a) over (order by a), lead(a, 2, -1) over (order by a), first_value(a) over (partition by b order by a) from t;
select a, last_value(a) over (partition by b order by a), nth_value(a, 2) over (partition by b order by a) from t;
select a, sum(a) over (order by a rows between 2 preceding and current row) from t;
select a, sum(a) over w, max(c) over w from t window w as (partition by b order by a);
select b, sum(a), rank() over (order by sum(a) desc) from t group by b;
select * from (select a, b, row_number() over (partition by b order by c desc, a) as rn from t) q where rn <= 2;
select * from (select a, b, row_number() over (partition by b order by c desc, a) as rn from t) q where rn = 1;
select * from (select a, b, rank() over (partition by b order by d) as r from t) q where r < 3;
select a, percent_rank() over (order by a), cume_dist() over (order by d) from t;
select a from t where a in (select a from u);
select a from t where a not in (select a from u);
select a from t where a not in (select x from u);
select a from t where a not in (select x from u where x is not null);
select id from v where a not in (select a from t where b = 'red');
select id from v where a not in (select a from empty);
select a from t where (a, b) in (select a, b from v);
select a from t where b in (select b from v) or a > 38;
select a, a in (select x from u) as m from t;
select id, a in (select k from u) as m, a not in (select k from u where a > 900) as n from v;
select a from t where exists (select 1 from u where u.a = t.a and u.x > 3);
select a from t where not exists (select 1 from u where u.a = t.a);
select a from t where exists (select 1 from u where u.a = t.a and u.x > t.c);
select a, exists (select 1 from u where u.a = t.a) as e from t;
select a, exists (select 1 from empty) as e, exists (select 1 from u) from t;
select a from t where a = any (select k from u);
select a, (select max(x) from u) as m from t;
select a, (select max(x) from u where u.a = t.a) as m from t;
select a, (select count(*) from u where u.a = t.a) as m from t;
select a, (select count(*) + sum(x) from u where u.a = t.a) as m from t;
select a, (select coalesce(sum(x), -1) from u where u.a = t.a) as m from t;
select a, (select s from u where u.a = t.a and u.k = 0) as s from t;
select a, (select x from u where u.a = t.a order by k desc limit 1) as last from t;
select a from t where c > (select avg(c) from t);
select a from t where c > (select avg(c) from t i where i.b = t.b);
select b, count(*) from t group by b having count(*) > (select avg(n) from (select count(*) as n from t group by b) q);
select b, count(*), (select max(id) from v where v.b = t.b) from t group by b;
with w as (select a, b from t where a < 10) select w.a, v.id from w join v on w.a = v.a;
with w as (select a from t), z(n) as (select a + 1 from w) select * from z where n < 5;
with w as (select b, sum(a) as s from t group by b) select x.b, y.s from w x join w y on x.b = y.b;
select q.m, count(*) from (select a % 4 as m from t) q group by q.m;
select q.x, q.y from (values (1, 'a'), (2, null), (3, 'c')) as q(x, y) where x > 1;
select * from generate_series(1, 5) as g;
select * from generate_series(5, 1, -2) as g(n);
select * from generate_series(5, 1) as g(n);
select g from generate_series(timestamp '2024-01-01', timestamp '2024-01-03', interval '12 hours') as g;
select a, n from t, generate_series(1, t.a % 4) as n;
select a, x from t, unnest(e) as x;
select a, x, o from t cross join unnest(e) with ordinality as q(x, o);
select a, x from t left join unnest(e) as x on true;
select x, count(*) from t, unnest(e) as x group by x;
select t.a, l.k, l.x from t, lateral (select k, x from u where u.a = t.a and u.x > 2) l;
select t.a, l.n from t left join lateral (select sum(x) as n from u where u.a = t.a) l on true;
select t.a, l.n from t cross join lateral (select count(*) as n from u where u.a = t.a) l;
select t.a, l.k from t left join lateral (select k from u where u.a = t.a order by k desc limit 1) l on true;
select t.a, l.y from t, lateral (select t.a * 2 as y) l;
select case when a % 2 = 0 then 'even' else 'odd' end as p, count(*) from t group by 1 order by 1;
select a as b, b as a from t order by 1;
select t.a, t.a from t where t.a < 3;
select b || '!' as x, count(*) from t where b is not null group by b || '!';
select b || '!' || b from t group by b;
select max(n) from (select count(*) as n from t group by b) q;
select a from t where b like 'r%' and (c between 1 and 20 or d > '2024-01-15');
select d + 1 as next, count(*) from t group by d + 1;
select 1;
select 1 where false;
select 'a' as x, null as y;
select a, b from t where a in (1, 2, 3) and b in ('red', 'green');
select count(*) from t a1, t a2, t a3 where a1.a = a2.a and a2.a = a3.a;
select date_trunc('hour', ts) as h, count(*), sum(x) from u group by 1 order by 1;
select sum(c) / nullif(count(*), 0) from t where a > 1000;
select coalesce(t.a, v.a) as a, t.b, v.b as vb from t full join v on t.a = v.a and v.id < 10;
table v;
select (select 1) + (select 2) as three;
select a from t where (select count(*) from u) > 3 and a < 4;
""".split(";")
    if query.strip()
]

REFUSED = [
    ("select nope from t", "42703"),
    ("select t.nope from t", "42703"),
    ("select z.a from t", "42P01"),
    ("select * from nope", "42P01"),
    ("select a from t, v", "42702"),
    ("select a, count(*) from t", "42803"),
    ("select a from t where count(*) > 1", "42803"),
    ("select sum(count(*)) from t", "42803"),
    ("select a from t group by b", "42803"),
    ("select row_number() over () from t where row_number() over () = 1", "42P20"),
    ("select now() from t", "0A000"),
    ("select random() from t", "0A000"),
    ("with recursive r as (select 1 as n union all select n + 1 from r) select * from r", "0A000"),
    ("select a from t union select a, b from t", "42601"),
    ("select a from t union select b from t", "42804"),
    ("select * from t join t on true", "42712"),
    ("select a from t where b", "42804"),
    ("select a from t order by 9", "42P10"),
    (
        "select a, sum(f) over (order by f range between 1 preceding and current row) from t",
        "0A000",
    ),
]
