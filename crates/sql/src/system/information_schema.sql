-- The views of information_schema. A query gives the columns that are not NULL; `relations.txt` has all
-- columns and their types.

-- information_schema_catalog_name:
select pg_catalog.current_database() as catalog_name

-- enabled_roles:
select rolname as role_name from pg_catalog.pg_authid where rolcanlogin

-- applicable_roles:
select m.rolname as grantee, r.rolname as role_name, 'NO' as is_grantable
from pg_catalog.pg_auth_members am
  join pg_catalog.pg_authid m on m.oid = am.member
  join pg_catalog.pg_authid r on r.oid = am.roleid

-- character_sets:
select 'UTF8' as character_set_name, 'UCS' as character_repertoire, 'UTF8' as form_of_use,
  pg_catalog.current_database() as default_collate_catalog

-- schemata:
select pg_catalog.current_database() as catalog_name, nspname as schema_name,
  pg_catalog.pg_get_userbyid(nspowner) as schema_owner
from pg_catalog.pg_namespace

-- tables:
select pg_catalog.current_database() as table_catalog, n.nspname as table_schema, c.relname as table_name,
  case when c.relkind = 'v' then 'VIEW' when c.relpersistence = 't' then 'LOCAL TEMPORARY'
    else 'BASE TABLE' end as table_type,
  case c.relkind when 'r' then 'YES' else 'NO' end as is_insertable_into, 'NO' as is_typed
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v')

-- views:
select pg_catalog.current_database() as table_catalog, n.nspname as table_schema, c.relname as table_name,
  pg_catalog.pg_get_viewdef(c.oid) as view_definition, 'NONE' as check_option, 'NO' as is_updatable,
  'NO' as is_insertable_into, 'NO' as is_trigger_updatable, 'NO' as is_trigger_deletable,
  'NO' as is_trigger_insertable_into
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'v'

-- columns:
select pg_catalog.current_database() as table_catalog, n.nspname as table_schema, c.relname as table_name,
  a.attname as column_name, a.attnum as ordinal_position,
  case when a.attgenerated = '' then pg_catalog.pg_get_expr(d.adbin, d.adrelid) end as column_default,
  case when a.attnotnull then 'NO' else 'YES' end as is_nullable,
  case when t.typelem <> 0 and t.typlen = -1 then 'ARRAY' when nt.nspname = 'pg_catalog'
    then pg_catalog.format_type(t.oid, null) else 'USER-DEFINED' end as data_type,
  _pg_char_max_length(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as character_maximum_length,
  _pg_char_octet_length(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as character_octet_length,
  _pg_numeric_precision(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as numeric_precision,
  _pg_numeric_precision_radix(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as numeric_precision_radix,
  _pg_numeric_scale(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as numeric_scale,
  _pg_datetime_precision(t.oid, case own.typtype when 'd' then own.typtypmod else a.atttypmod end) as datetime_precision,
  case when co.collname <> 'default' then pg_catalog.current_database() end as collation_catalog,
  case when co.collname <> 'default' then 'pg_catalog' end as collation_schema,
  case when co.collname <> 'default' then co.collname end as collation_name,
  case own.typtype when 'd' then pg_catalog.current_database() end as domain_catalog,
  case own.typtype when 'd' then nown.nspname end as domain_schema,
  case own.typtype when 'd' then own.typname end as domain_name,
  pg_catalog.current_database() as udt_catalog, nt.nspname as udt_schema, t.typname as udt_name,
  a.attnum as dtd_identifier, 'NO' as is_self_referencing,
  case when a.attidentity in ('a', 'd') then 'YES' else 'NO' end as is_identity,
  case a.attidentity when 'a' then 'ALWAYS' when 'd' then 'BY DEFAULT' end as identity_generation,
  s.seqstart as identity_start, s.seqincrement as identity_increment, s.seqmax as identity_maximum,
  s.seqmin as identity_minimum, case when s.seqcycle then 'YES' else 'NO' end as identity_cycle,
  case when a.attgenerated = '' then 'NEVER' else 'ALWAYS' end as is_generated,
  case when a.attgenerated <> '' then pg_catalog.pg_get_expr(d.adbin, d.adrelid) end as generation_expression,
  case when c.relkind = 'r' then 'YES' else 'NO' end as is_updatable
from pg_catalog.pg_attribute a
  join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_type own on own.oid = a.atttypid
  join pg_catalog.pg_namespace nown on nown.oid = own.typnamespace
  join pg_catalog.pg_type t on t.oid = case own.typtype when 'd' then own.typbasetype else own.oid end
  join pg_catalog.pg_namespace nt on nt.oid = t.typnamespace
  left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  left join pg_catalog.pg_collation co on co.oid = a.attcollation
  left join (pg_catalog.pg_depend dep join pg_catalog.pg_sequence s on dep.objid = s.seqrelid
      and dep.classid = 1259 and dep.deptype = 'i')
    on dep.refclassid = 1259 and dep.refobjid = a.attrelid and dep.refobjsubid = a.attnum
where a.attnum > 0 and c.relkind in ('r', 'v')

-- sequences:
select pg_catalog.current_database() as sequence_catalog, n.nspname as sequence_schema,
  c.relname as sequence_name, pg_catalog.format_type(s.seqtypid, null) as data_type,
  _pg_numeric_precision(s.seqtypid, -1) as numeric_precision, 2 as numeric_precision_radix,
  0 as numeric_scale, s.seqstart as start_value, s.seqmin as minimum_value, s.seqmax as maximum_value,
  s.seqincrement as increment, case when s.seqcycle then 'YES' else 'NO' end as cycle_option
from pg_catalog.pg_sequence s
  join pg_catalog.pg_class c on c.oid = s.seqrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where not exists (select 1 from pg_catalog.pg_depend d
  where d.classid = 1259 and d.objid = c.oid and d.deptype = 'i')

-- table_constraints:
select pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name, pg_catalog.current_database() as table_catalog, n.nspname as table_schema,
  c.relname as table_name,
  case o.contype when 'c' then 'CHECK' when 'f' then 'FOREIGN KEY' when 'p' then 'PRIMARY KEY' else 'UNIQUE' end
    as constraint_type,
  case when o.condeferrable then 'YES' else 'NO' end as is_deferrable,
  case when o.condeferred then 'YES' else 'NO' end as initially_deferred, 'YES' as enforced,
  case when o.contype = 'u' then 'YES' end as nulls_distinct
from pg_catalog.pg_constraint o
  join pg_catalog.pg_class c on c.oid = o.conrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
union all
select pg_catalog.current_database(), n.nspname, n.oid::text || '_' || c.oid::text || '_' || a.attnum::text || '_not_null',
  pg_catalog.current_database(), n.nspname, c.relname, 'CHECK', 'NO', 'NO', 'YES', null
from pg_catalog.pg_attribute a
  join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where a.attnotnull and a.attnum > 0 and c.relkind = 'r'

-- check_constraints:
select pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name,
  pg_catalog.substr(pg_catalog.pg_get_constraintdef(o.oid), 7) as check_clause
from pg_catalog.pg_constraint o join pg_catalog.pg_namespace n on n.oid = o.connamespace
where o.contype = 'c'
union all
select pg_catalog.current_database(), n.nspname, n.oid::text || '_' || c.oid::text || '_' || a.attnum::text || '_not_null',
  a.attname || ' IS NOT NULL'
from pg_catalog.pg_attribute a
  join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where a.attnotnull and a.attnum > 0 and c.relkind = 'r'

-- key_column_usage:
select pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name, pg_catalog.current_database() as table_catalog, n.nspname as table_schema,
  c.relname as table_name, a.attname as column_name, k.n::int as ordinal_position,
  case when o.contype = 'f' then
    (select i.n::int from pg_catalog.pg_index x, unnest(x.indkey) with ordinality as i(attnum, n)
      where x.indexrelid = o.conindid and i.attnum = o.confkey[k.n])
  end as position_in_unique_constraint
from pg_catalog.pg_constraint o
  join pg_catalog.pg_class c on c.oid = o.conrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  cross join lateral unnest(o.conkey) with ordinality as k(attnum, n)
  join pg_catalog.pg_attribute a on a.attrelid = o.conrelid and a.attnum = k.attnum
where o.contype in ('p', 'u', 'f')

-- constraint_column_usage:
select pg_catalog.current_database() as table_catalog, n.nspname as table_schema, c.relname as table_name,
  a.attname as column_name, pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name
from pg_catalog.pg_constraint o
  join pg_catalog.pg_class c on c.oid = case o.contype when 'f' then o.confrelid else o.conrelid end
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_attribute a on a.attrelid = c.oid
    and a.attnum = any (case o.contype when 'f' then o.confkey else o.conkey end)

-- constraint_table_usage:
select pg_catalog.current_database() as table_catalog, n.nspname as table_schema, c.relname as table_name,
  pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name
from pg_catalog.pg_constraint o
  join pg_catalog.pg_class c on c.oid = case o.contype when 'f' then o.confrelid else o.conrelid end
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where o.contype in ('f', 'p', 'u')

-- referential_constraints:
select pg_catalog.current_database() as constraint_catalog, n.nspname as constraint_schema,
  o.conname as constraint_name, case when u.oid is not null then pg_catalog.current_database() end
    as unique_constraint_catalog,
  un.nspname as unique_constraint_schema, u.conname as unique_constraint_name,
  case o.confmatchtype when 'f' then 'FULL' else 'NONE' end as match_option,
  case o.confupdtype when 'c' then 'CASCADE' when 'n' then 'SET NULL' when 'd' then 'SET DEFAULT'
    when 'r' then 'RESTRICT' else 'NO ACTION' end as update_rule,
  case o.confdeltype when 'c' then 'CASCADE' when 'n' then 'SET NULL' when 'd' then 'SET DEFAULT'
    when 'r' then 'RESTRICT' else 'NO ACTION' end as delete_rule
from pg_catalog.pg_constraint o
  join pg_catalog.pg_namespace n on n.oid = o.connamespace
  left join pg_catalog.pg_constraint u on u.conindid = o.conindid and u.contype in ('p', 'u')
  left join pg_catalog.pg_namespace un on un.oid = u.connamespace
where o.contype = 'f'

-- collations:
select pg_catalog.current_database() as collation_catalog, 'pg_catalog' as collation_schema,
  collname as collation_name, 'NO PAD' as pad_attribute
from pg_catalog.pg_collation
where collencoding in (-1, 6)

-- collation_character_set_applicability:
select pg_catalog.current_database() as collation_catalog, 'pg_catalog' as collation_schema,
  collname as collation_name, 'UTF8' as character_set_name
from pg_catalog.pg_collation
where collencoding in (-1, 6)

-- view_table_usage:
select distinct pg_catalog.current_database() as view_catalog, vn.nspname as view_schema,
  v.relname as view_name, pg_catalog.current_database() as table_catalog, tn.nspname as table_schema,
  t.relname as table_name
from pg_catalog.pg_class v
  join pg_catalog.pg_namespace vn on vn.oid = v.relnamespace
  join pg_catalog.pg_depend dv on dv.refobjid = v.oid and dv.refclassid = 1259 and dv.classid = 2618
    and dv.deptype = 'i'
  join pg_catalog.pg_depend dt on dt.objid = dv.objid and dt.classid = 2618 and dt.refclassid = 1259
    and dt.refobjid <> v.oid
  join pg_catalog.pg_class t on t.oid = dt.refobjid
  join pg_catalog.pg_namespace tn on tn.oid = t.relnamespace
where v.relkind = 'v' and t.relkind in ('r', 'v')

-- element_types:
select pg_catalog.current_database() as object_catalog, n.nspname as object_schema, c.relname as object_name,
  case c.relkind when 'v' then 'VIEW' else 'TABLE' end as object_type,
  a.attnum as collection_type_identifier, pg_catalog.format_type(e.oid, null) as data_type,
  pg_catalog.current_database() as udt_catalog, en.nspname as udt_schema, e.typname as udt_name,
  'a' || a.attnum::text as dtd_identifier
from pg_catalog.pg_attribute a
  join pg_catalog.pg_class c on c.oid = a.attrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_type t on t.oid = a.atttypid
  join pg_catalog.pg_type e on e.oid = t.typelem
  join pg_catalog.pg_namespace en on en.oid = e.typnamespace
where a.attnum > 0 and c.relkind in ('r', 'v') and t.typlen = -1

-- column_privileges:
select p.grantor, p.grantee, p.table_catalog, p.table_schema, p.table_name, a.attname as column_name,
  p.privilege_type, p.is_grantable
from information_schema.table_privileges p
  join pg_catalog.pg_namespace n on n.nspname = p.table_schema
  join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = p.table_name
  join pg_catalog.pg_attribute a on a.attrelid = c.oid
where a.attnum > 0 and not a.attisdropped
  and p.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')

-- role_table_grants:
select grantor, grantee, table_catalog, table_schema, table_name, privilege_type, is_grantable, with_hierarchy
from information_schema.table_privileges

-- role_column_grants:
select grantor, grantee, table_catalog, table_schema, table_name, column_name, privilege_type, is_grantable
from information_schema.column_privileges
