-- Domains.
\set VERBOSITY sqlstate
create domain posint as int check (value > 0);
create domain posint as int;
create domain code as varchar(5) not null default 'none' constraint upper_or_none check (value = upper(value) or value = 'none') check (length(value) >= 2);
create domain plain text;
create domain list as int[] check (array_length(value, 1) <= 2);
create domain wrong as int check (value > 'x');
create domain wrong as int default 'x';
create domain wrong as nothing;
create domain wrong as int references posint;
create table t (id posint primary key, c code, l list, p posint default 7, q plain);
insert into t (id) values (1);
insert into t values (2, 'AB', '{1,2}', null, 'x'), (3, 'CDE', array[3], 9, null);
insert into t (id) values (0);
insert into t (id) values (null);
insert into t (id, c) values (4, 'ab');
insert into t (id, c) values (4, 'A');
insert into t (id, c) values (4, 'ABCDEF');
insert into t (id, c) values (4, null);
insert into t (id, l) values (4, '{1,2,3}');
insert into t (id, p) select 4, -1;
update t set p = p - 7 where id = 1;
update t set c = null;
update t set p = default, c = default where id = 3 returning *;
insert into t (id) values (1) on conflict (id) do update set p = -3;
insert into t (id) values (1) on conflict (id) do update set p = t.p + 1 returning p;
select * from t order by id;
select 5::posint, '6'::posint + 1, 'XY'::code || 'z', '{1}'::list, cast(7 as posint);
select 0::posint;
select (-1)::posint;
select null::posint;
select null::code;
select 'x'::posint;
select 'toolong'::code;
select p::posint, (id - 1)::posint from t where id > 1 order by id;
select (id - 1)::posint from t order by id;
select id from t where id = 2 and p is null;
select max(p), sum(id), count(distinct c) from t;
select c || '!' from t where c like 'A%' order by 1;
select l[1], array_length(l, 1) from t order by id;
create index t_p on t (p);
create index t_e on t ((p + 1)) where p > 1;
select id from t where p = 8;
prepare q (posint) as insert into t (id, p) values (9, $1) returning p;
execute q (5);
execute q (-5);
prepare r as insert into t (id, p) values (10, $1) returning p;
execute r (6);
execute r (0);
copy t (id, c, p) from stdin;
20	ZZ	3
\.
copy t (id, c, p) from stdin;
21	ZZ	0
\.
copy t (id, c) from stdin;
21	\N
\.
copy t (id) from stdin;
21
\.
copy (select id, c from t where id > 19 order by id) to stdout;
create table f (t_id posint references t on delete set null, n list default '{}');
insert into f values (20);
delete from t where id = 20;
select * from f;
alter table t add d posint;
alter table t add e code;
alter table t add f posint default -1;
select id, d, e from t where id < 3 order by id;
alter table t alter q type code using coalesce(q, 'QQ');
alter table t alter q type code using coalesce(upper(q), 'QQ');
alter table t alter d type text;
create view v as select id, c, p from t;
select * from v where id = 2;
\d f
\dD posint
\dD+ list
\dT
select column_name, data_type, character_maximum_length, numeric_precision, domain_name, domain_schema, udt_name from information_schema.columns where table_name = 't' order by ordinal_position;
select typname, typtype, typcategory, typlen, typbyval, typnotnull, typbasetype::regtype, typtypmod, typdefault, typinput, typoutput, typalign, typstorage, typcollation from pg_type where typname in ('posint', 'code', 'plain', 'list') order by 1;
select conname, contype, contypid::regtype, conrelid from pg_constraint where contypid = 'code'::regtype order by 1;
select attname, format_type(atttypid, atttypmod), atttypid::regtype from pg_attribute where attrelid = 't'::regclass and attnum > 0 and not attisdropped order by attnum;
alter domain posint set default 3;
alter domain posint drop default;
alter domain posint set default 'x';
alter domain code drop not null;
insert into t (id, c) values (30, null);
alter domain code set not null;
delete from t where id = 30;
alter domain code set not null;
insert into t (id, c) values (30, null);
alter domain posint add check (value < 1000);
insert into t (id) values (1000);
alter domain posint add constraint small check (value < 10);
insert into t (id) values (500);
alter domain posint add constraint small check (value < 100);
alter domain posint drop constraint nothing;
alter domain posint drop constraint if exists nothing;
alter domain posint drop constraint posint_check1;
insert into t (id) values (1000);
alter domain posint rename to number;
select 5::number;
select -5::number;
select (-5)::number;
alter domain nothing drop not null;
begin;
alter domain number drop constraint posint_check;
insert into t (id) values (-1);
rollback;
insert into t (id) values (-1);
comment on domain number is 'of things';
select obj_description('number'::regtype, 'pg_type');
drop domain number;
drop domain nothing;
drop domain if exists nothing;
drop domain plain;
drop table f;
drop domain list cascade;
select * from t where id = 2;
drop view v;
drop table t;
drop domain number;
drop domain number;
drop domain code;
drop type code;
