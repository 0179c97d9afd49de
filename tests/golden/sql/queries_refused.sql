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
-- 0A000
with recursive r as (select 1 as n union all select n + 1 from r) select * from r;
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
-- 0A000
select a, sum(f) over (order by f range between 1 preceding and current row) from t;
