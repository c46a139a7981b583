-- The views of pg_catalog. A query gives the columns that are not NULL; `relations.txt` has all columns
-- and their types.

-- pg_roles:
select rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolconnlimit,
  '********' as rolpassword, rolvaliduntil, rolbypassrls, oid
from pg_catalog.pg_authid

-- pg_shadow:
select rolname as usename, oid as usesysid, rolcreatedb as usecreatedb, rolsuper as usesuper,
  rolreplication as userepl, rolbypassrls as usebypassrls, rolpassword as passwd, rolvaliduntil as valuntil
from pg_catalog.pg_authid
where rolcanlogin

-- pg_user:
select rolname as usename, oid as usesysid, rolcreatedb as usecreatedb, rolsuper as usesuper,
  rolreplication as userepl, rolbypassrls as usebypassrls, '********' as passwd, rolvaliduntil as valuntil
from pg_catalog.pg_authid
where rolcanlogin

-- pg_group:
select rolname as groname, oid as grosysid, array(select member from pg_catalog.pg_auth_members where roleid = r.oid) as grolist
from pg_catalog.pg_authid r
where not rolcanlogin

-- pg_tables:
select n.nspname as schemaname, c.relname as tablename, pg_catalog.pg_get_userbyid(c.relowner) as tableowner,
  t.spcname as tablespace, c.relhasindex as hasindexes, c.relhasrules as hasrules,
  c.relhastriggers as hastriggers, c.relrowsecurity as rowsecurity
from pg_catalog.pg_class c
  left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_tablespace t on t.oid = c.reltablespace
where c.relkind in ('r', 'p')

-- pg_views:
select n.nspname as schemaname, c.relname as viewname, pg_catalog.pg_get_userbyid(c.relowner) as viewowner,
  pg_catalog.pg_get_viewdef(c.oid) as definition
from pg_catalog.pg_class c left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'v'

-- pg_matviews:
select n.nspname as schemaname, c.relname as matviewname, pg_catalog.pg_get_userbyid(c.relowner) as matviewowner,
  t.spcname as tablespace, c.relhasindex as hasindexes, c.relispopulated as ispopulated,
  pg_catalog.pg_get_viewdef(c.oid) as definition
from pg_catalog.pg_class c
  left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_tablespace t on t.oid = c.reltablespace
where c.relkind = 'm'

-- pg_indexes:
select n.nspname as schemaname, c.relname as tablename, i.relname as indexname, t.spcname as tablespace,
  pg_catalog.pg_get_indexdef(i.oid) as indexdef
from pg_catalog.pg_index x
  join pg_catalog.pg_class c on c.oid = x.indrelid
  join pg_catalog.pg_class i on i.oid = x.indexrelid
  left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_tablespace t on t.oid = i.reltablespace

-- pg_sequences:
select n.nspname as schemaname, c.relname as sequencename, pg_catalog.pg_get_userbyid(c.relowner) as sequenceowner,
  s.seqtypid::regtype as data_type, s.seqstart as start_value, s.seqmin as min_value, s.seqmax as max_value,
  s.seqincrement as increment_by, s.seqcycle as cycle, s.seqcache as cache_size,
  pg_catalog.pg_sequence_last_value(c.oid) as last_value
from pg_catalog.pg_sequence s
  join pg_catalog.pg_class c on c.oid = s.seqrelid
  left join pg_catalog.pg_namespace n on n.oid = c.relnamespace

-- pg_stat_all_tables:
select c.oid as relid, n.nspname as schemaname, c.relname
from pg_catalog.pg_class c left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r'

-- pg_stat_user_tables:
select c.oid as relid, n.nspname as schemaname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')

-- pg_stat_sys_tables:
select c.oid as relid, n.nspname as schemaname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname in ('pg_catalog', 'information_schema')

-- pg_statio_all_tables:
select relid, schemaname, relname from pg_catalog.pg_stat_all_tables

-- pg_statio_user_tables:
select relid, schemaname, relname from pg_catalog.pg_stat_user_tables

-- pg_statio_sys_tables:
select relid, schemaname, relname from pg_catalog.pg_stat_sys_tables

-- pg_stat_all_indexes:
select c.oid as relid, i.oid as indexrelid, n.nspname as schemaname, c.relname, i.relname as indexrelname
from pg_catalog.pg_index x
  join pg_catalog.pg_class c on c.oid = x.indrelid
  join pg_catalog.pg_class i on i.oid = x.indexrelid
  left join pg_catalog.pg_namespace n on n.oid = c.relnamespace

-- pg_stat_user_indexes:
select relid, indexrelid, schemaname, relname, indexrelname from pg_catalog.pg_stat_all_indexes

-- pg_statio_all_indexes:
select relid, indexrelid, schemaname, relname, indexrelname from pg_catalog.pg_stat_all_indexes

-- pg_statio_user_indexes:
select relid, indexrelid, schemaname, relname, indexrelname from pg_catalog.pg_stat_all_indexes

-- pg_statio_all_sequences:
select c.oid as relid, n.nspname as schemaname, c.relname
from pg_catalog.pg_class c left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'S'

-- pg_statio_user_sequences:
select relid, schemaname, relname from pg_catalog.pg_statio_all_sequences

-- pg_stat_database:
select oid as datid, datname from pg_catalog.pg_database
