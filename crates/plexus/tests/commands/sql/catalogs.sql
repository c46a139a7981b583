\set VERBOSITY sqlstate
create table parent (id serial primary key, name varchar(20) not null unique, price numeric(10,2) default 1.50, made timestamptz default now());
create table child (id int primary key, pid int references parent (id) on delete cascade, note text default 'x', constraint positive check (id > 0));
create index child_pid on child (pid);
create view names as select id, name from parent;
comment on table parent is 'those above';
comment on column parent.name is 'a name';
\d parent
\d child
\d names
\d child_pid
\dt
\di
\ds
\dv
\dn
\d+ child
select relname, relkind, relhasindex from pg_class where relnamespace = 'public'::regnamespace order by 1;
select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute where attrelid = 'parent'::regclass and attnum > 0 order by attnum;
select conname, contype, pg_get_constraintdef(oid) from pg_constraint where conrelid = 'child'::regclass order by 1;
select pg_get_indexdef(indexrelid), indisunique, indisprimary from pg_index where indrelid = 'child'::regclass order by 1;
select 'parent'::regclass, 'int4'::regtype, 'nosuch'::regclass;
select to_regclass('parent'), to_regclass('nosuch'), pg_table_is_visible('parent'::regclass);
select obj_description('parent'::regclass), col_description('parent'::regclass, 2);
select pg_get_serial_sequence('parent', 'id');
select typname, typlen, typtype from pg_type where typname in ('int4', 'text', '_int4', 'jsonb') order by 1;
select table_name, table_type from information_schema.tables where table_schema = 'public' order by 1;
select column_name, data_type, is_nullable, character_maximum_length, numeric_precision from information_schema.columns where table_name = 'parent' order by ordinal_position;
select constraint_name, constraint_type from information_schema.table_constraints where table_name in ('parent', 'child') and constraint_type <> 'CHECK' order by 1;
select constraint_name, column_name from information_schema.key_column_usage where table_schema = 'public' order by 1;
select unique_constraint_name, delete_rule from information_schema.referential_constraints where constraint_schema = 'public';
select schemaname, tablename, hasindexes from pg_tables where schemaname = 'public' order by 2;
select indexname, indexdef from pg_indexes where schemaname = 'public' order by 1;
select current_schemas(false), current_setting('search_path');
select count(*) > 0 from pg_settings where name = 'server_version';
