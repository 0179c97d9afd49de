-- Queries that are refused, each under its SQLSTATE.
-- 42703
select nope from t;
-- 42703
select t.nope from t;
-- 42P01
select z.a from t;
-- 42P01
select * from nope;
-- 42702
select a from t, v;
-- 42803
select a, count(*) from t;
-- 42803
select a from t where count(*) > 1;
-- 42803
select sum(count(*)) from t;
-- 42803
select a from t group by b;
-- 42P20
select row_number() over () from t where row_number() over () = 1;
-- 0A000
select now() from t;
-- 0A000
select random() from t;
-- 42P19
with recursive r as (select n + 1 as n from r) select * from r;
-- 42804
with recursive r as (select 1 as n union all select n + 1.5 from r where n < 5) select * from r;
-- 0A000
select a, sum(a) over (order by a groups 1 preceding) from t;
-- 0A000
select a, sum(a) over (order by a rows between 1 preceding and current row exclude current row) from t;
-- 0A000
select * from t for system_time as of 12;
-- 0A000
select * from t join v for system_time as of proctime() on t.a = v.a;
-- 42883
select * from generate_serie(1, 2);
-- 2201W
select a from t limit -1;
-- 42601
select a from t union select a, b from t;
-- 42804
select a from t union select b from t;
-- 42712
select * from t join t on true;
-- 42804
select a from t where b;
-- 42P10
select a from t order by 9;
-- 42P20
select a, sum(f) over (order by f, a range between 1 preceding and current row) from t;
