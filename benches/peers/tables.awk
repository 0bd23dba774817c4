# Tables in Markdown from the lines of JSON that replay programs print: `run.sh` calls it, with the names of the columns.
# Each cell is `best / median` over the rounds.

function value(key,    text) {
    if (!match($0, "\"" key "\": \"?[^,}\"]*")) return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^"[^"]*": "?/, "", text)
    return text
}

# One more measurement of `what` for the program of this line.
function add(what, best, middle,    key) {
    key = what SUBSEP name
    if (!(what in known)) { known[what] = 1; rows[++row_count] = what }
    count[key]++
    if (count[key] == 1 || best < lowest[key]) lowest[key] = best
    middles[key, count[key]] = middle
}

function median(key,    n, i, j, t, sorted) {
    n = count[key]
    for (i = 1; i <= n; i++) sorted[i] = middles[key, i]
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && sorted[j] + 0 < sorted[j - 1] + 0; j--) { t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t }
    return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}

function size(bytes,    unit) {
    for (unit = 1; bytes >= 1024 && bytes % 1024 == 0; unit++) bytes /= 1024
    return bytes " " substr("B  KiBMiB", 3 * unit - 2, unit > 1 ? 3 : 1)
}

function head(title,    i, line, rule) {
    line = "| " title " |"; rule = "| --- |"
    for (i = 1; i <= column_count; i++) { line = line " " columns[i] " |"; rule = rule " --- |" }
    print "\n" line "\n" rule
}

# The rows whose names begin with `part`, less that beginning.
function table(title, part, digits, both,    i, r, line, key) {
    head(title)
    for (r = 1; r <= row_count; r++) {
        if (index(rows[r], part) != 1) continue
        line = "| " substr(rows[r], length(part) + 1) " |"
        for (i = 1; i <= column_count; i++) {
            key = rows[r] SUBSEP columns[i]
            if (!(key in count)) line = line " |"
            else if (both) line = line sprintf(" %.*f / %.*f |", digits, lowest[key], digits, median(key))
            else line = line sprintf(" %.*f |", digits, lowest[key])
        }
        print line
    }
}

BEGIN { column_count = split(names, columns, "|") }

{
    name = value("name")
    busy += value("other_cpus_busy"); busy_count++
    if (value("fake_misuse") + 0) misuse++
    if (value("bench") != "") {
        what = value("bench")
        if (sub(/^hot_/, "", what)) what = "hot " size(what)
        sub(/^mix_1000_1thread$/, "mix of 1,000", what)
        sub(/^mix_1000_2threads_2streams$/, "mix, two threads", what)
        add("micro " what, value("chunk_best"), value("chunk_median"))
    } else if (value("completed") == "true") {
        what = value("trace"); sub(/_.*/, "", what)
        events = value("events")
        own = (value("total_ms") - value("inside_fake_ms")) * 1e6 / events
        add("cold " what, own, own)
        warm = value("last_loop_ms") * 1e6 / events
        add("warm " what, warm, warm)
        over = value("peak_physical") / value("peak_live_bytes")
        add("memory " what, over, over)
    } else {
        print "not completed: " $0 > "/dev/stderr"
    }
}

END {
    printf "Other processes used %.2f CPUs meanwhile. Rules of the driver that were broken: %d.\n", busy / busy_count, misuse
    table("ns a pair", "micro ", 0, 1)
    table("ns an event, warm", "warm ", 0, 1)
    table("ns an event, cold", "cold ", 0, 1)
    table("mapped / live", "memory ", 4, 0)
}
