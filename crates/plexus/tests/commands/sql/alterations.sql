\set VERBOSITY sqlstate
-- Columns.
create table t (id int primary key, a int);
insert into t values (1, 10), (2, 20);
alter table t add column b text default 'x', add column c int;
select * from t order by id;
alter table t add column d int not null default 5;
alter table t add column d int;
alter table t add column if not exists d int;
insert into t (id, b) values (3, 'y');
select * from t order by id;
alter table t drop column a;
select * from t order by id;
alter table t drop column nosuch;
alter table t drop column if exists nosuch;
alter table t rename column b to bb;
alter table t alter column c set default 7;
insert into t (id) values (4);
select * from t order by id;
alter table t alter column c drop default, alter column c set not null;
update t set c = 1 where c is null;
alter table t alter column c set not null;
insert into t (id) values (5);
alter table t alter column c drop not null;
alter table t alter column bb type varchar(3), alter column d type bigint using d * 2;
select * from t order by id;
alter table t rename to t2;
select count(*) from t2;
select * from t;
-- Constraints.
create table k (a int check (a > 0), b int, constraint small check (b < 100), unique (b));
insert into k values (0, 1);
insert into k values (1, 100);
insert into k values (1, null), (null, 5);
insert into k values (2, 5);
alter table k add constraint other check (a <> 3);
insert into k values (3, 7);
alter table k drop constraint other;
insert into k values (3, 7);
alter table k drop constraint nosuch;
alter table k add primary key (b);
create table g (id int generated always as identity, x int, y int generated always as (x * 2) stored);
insert into g (x) values (1), (2) returning *;
insert into g (id, x) values (9, 9);
insert into g (id, x) overriding system value values (9, 9) returning *;
update g set x = 5 where x = 1 returning *;
insert into g (x, y) values (1, 1);
-- Foreign keys.
create table p (id int primary key, n text unique);
create table c1 (id int primary key, pid int references p);
create table c2 (id int primary key, pid int references p (id) on delete cascade on update cascade);
create table c3 (id int primary key, pid int references p on delete set null);
create table c4 (id int primary key, pid int default 1 references p on delete set default);
insert into p values (1, 'one'), (2, 'two'), (3, 'three');
insert into c1 values (1, 1), (2, null);
insert into c1 values (3, 99);
insert into c2 values (1, 2), (2, 3);
insert into c3 values (1, 2);
insert into c4 values (1, 2);
delete from p where id = 1;
delete from p where id = 2;
select * from c2 order by id;
select * from c3;
select * from c4;
update p set id = 30 where id = 3;
select * from c2;
update p set id = 10 where id = 1;
drop table p;
truncate p;
create table d1 (id int primary key, other int references d1 deferrable initially deferred);
begin;
insert into d1 values (1, 2);
insert into d1 values (2, 1);
commit;
insert into d1 values (3, 9);
begin;
set constraints all immediate;
insert into d1 values (4, 9);
rollback;
select * from d1 order by id;
alter table c1 drop constraint c1_pid_fkey;
insert into c1 values (4, 77);
alter table c1 add foreign key (pid) references p;
alter table c1 add constraint nokey foreign key (pid) references nosuch;
-- Views and schemas.
create view v as select id, n || '!' as m from p where id > 1;
select * from v order by id;
create view v as select 1;
create or replace view v as select id, n || '?' as m from p;
select * from v order by id;
create view w as select count(*) as many from v;
select * from w;
drop view v;
drop view v cascade;
select * from w;
create schema s;
create table s.t (id int primary key);
insert into s.t values (1);
select * from s.t;
select * from t;
set search_path to s, public;
select * from t;
select current_schema;
create table u (x int);
reset search_path;
select * from u;
select * from s.u;
drop schema s;
drop schema s cascade;
select * from s.t;
create schema s;
drop schema s;
drop schema s;
-- Other forms.
create table copied as select id, n from p;
select * from copied order by id;
select id into chosen from p where id > 1;
select * from chosen;
create index on k (a) where b is not null;
create unique index low on p (lower(n));
insert into p values (50, 'ONE');
insert into p values (51, 'x') on conflict (n) do nothing;
insert into p values (52, 'x') on conflict (n) do update set n = excluded.n || '2' returning *;
comment on table p is 'people';
select obj_description('p'::regclass);
alter index low rename to lower_n;
drop index lower_n;
create sequence sq start 5;
select nextval('sq');
alter sequence sq restart with 100;
select nextval('sq');
drop sequence sq;
create table a1 (id serial primary key);
drop table a1;
begin;
create table r (id int primary key, p int references p);
insert into r values (1, 1);
rollback;
select * from r;
-- A view of all columns keeps its columns; texts of expressions keep their quotes.
create table vt (a int primary key, b text check (b <> 'it''s "a"'));
create view va as select * from vt;
alter table vt add column c int default 5;
insert into vt values (1, 'x', 3);
select * from va;
insert into vt values (2, 'it''s "a"', 3);
drop view va;
alter table vt rename b to "b""c";
insert into vt values (2, 'it''s "a"', 3);
insert into vt values (2, 'a', 3) returning *;
-- A sequence that has a new name is still that of its columns.
create sequence vs;
create table vu (id int default nextval('vs'), x text default 'vs');
alter sequence vs rename to vs2;
insert into vu (x) values (default) returning *;
-- Rights that others were given depend on the right to give them.
create role giver_a login;
create role giver_b login;
grant select on vt to giver_a with grant option;
\c - giver_a
\set VERBOSITY sqlstate
grant select on vt to giver_b;
\c - giver_b
\set VERBOSITY sqlstate
select count(*) from vt;
select count(*) from vt for update;
\c - tester
\set VERBOSITY sqlstate
revoke select on vt from giver_a;
revoke grant option for select on vt from giver_a;
revoke select on vt from giver_a cascade;
\c - giver_b
\set VERBOSITY sqlstate
select count(*) from vt;
\c - tester
\set VERBOSITY sqlstate
begin;
savepoint a;
declare cc cursor for select generate_series(1, 5);
release savepoint a;
fetch 2 from cc;
commit;
begin;
savepoint a;
savepoint b;
declare cc cursor for select 1;
release savepoint b;
rollback to a;
fetch 1 from cc;
rollback;
declare hh cursor with hold for select 7;
fetch 1 from hh;
discard all;
fetch 1 from hh;
