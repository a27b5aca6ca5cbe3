# The changes to Redis's suite. `fetch` applies them to each file.

# A server without functions is tested all the same.
s/^    r function flush$/    catch {r function flush}/

# Texts of Redis 7.0 that later versions changed; Duramen has those of 7.4.
s/NOPERM this user has no permissions to access one of the keys used as arguments/NOPERM No permissions to access a key/
s/\*NOPERM\*keys\*/*NOPERM*key*/
s/\*NOPERM\*channels\*/*NOPERM*channel*/
s/"This user has no permissions \(.*\)" \[r ACL DRYRUN \([a-z-]*\)/"User \2 has no permissions \1" [r ACL DRYRUN \2/
s/{user hpuser on nopass \(resetchannels\)/{user hpuser on nopass sanitize-payload \1/

# Since 7.2 a short list and a short set of texts are listpacks too.
s/assert_encoding quicklist/assert_encoding *list*/
s/^    proc create_set {key entries} {$/    r config set set-max-listpack-entries 0\n&/
s/^\( *[0-9]* lpush \)quicklist /\1*list* /
