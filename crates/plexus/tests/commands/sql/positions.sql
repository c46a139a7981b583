-- Errors with their messages and their places in the text.
create table t (a int primary key, b text, c numeric(6,2), d date);
create table u (a int, e boolean);
insert into t values (1, 'one', 1.5, '2020-01-01');
-- names
select nope from t;
select a, nope from t;
select t.nope from t;
select x.a from t;
select a from t, u;
select * from nope;
select * from t join nope on true;
select * from t where exists (select 1 from nope);
select a
from t
where
  nope = 1;
select 'ä', nope from t;
insert into nope values (1);
insert into t (a, nope) values (1, 2);
update nope set a = 1;
update t set nope = 1;
delete from nope;
delete from t where nope = 1;
update t set a = nope;
insert into t values (2, nope);
select a from t order by nope;
select a from t group by nope;
select a from t order by 7;
select a, b from t group by a + 1;
select b, count(*) from u, t group by e;
select a from t having b = 'x';
-- functions, operators and types
select nope(a) from t;
select upper(a, b) from t;
select a + b from t;
select a + d from t;
select (a) + (b || 'x') from t;
select b = a from t;
select b like 1 from t;
select a::int + 'x'::text from t;
select a::nope from t;
select cast(a as nope) from t;
create table v (a nope);
select case when a then 1 end from t;
select * from t where a;
select a and true from t;
select not b from t;
select * from t limit 'x';
select * from nope();
select 1 in ('x');
-- values
select * from t where a = 'x';
select * from t where 'x' = a;
select * from t where a in (1, 'x');
select * from t where d > 'never';
select 'x'::int;
select int 'x';
select date '2020-02-30';
insert into t values ('x');
insert into t values (2, 'b', 'c');
insert into t values (2, 'b', 3, true);
update t set a = 'x';
update t set d = 5;
select 1 / 0;
select a / 0 from t;
-- syntax
selct 1;
select 1 +;
select 1 + from t;
select * from t where;
select * from t wher a = 1;
select a b c from t;
insert into t values (1, 2;
insert t values (1);
update t a = 1;
delete t;
create table w (a int,);
create tabel w (a int);
select (1;
select 1);
select a from t group a;
select 'open;
';
drop table;
-- statements of a prepared one, a view and a default have no places here
prepare p (int) as select $1 / 0;
execute p (1);
create view y as select a, nope from t;
create table z (a int default nope);
create table z (a int check (nope > 0));
create table z (a int, b int generated always as (nope) stored);
