# progress.sh -- says in a long run of tests what begins now, which share is done and how much time is left. To be sourced.
#
#     progress_total 300                  the whole usually takes 300 seconds
#     progress 40 "compiling the ops"     prints `[ 13%, 4:20 left] compiling the ops`, which usually takes 40 seconds
#     progress_parts 100 8                what follows has 8 parts and takes 100 seconds; progress_part "name" at the end of each
#
# The seconds are those of a machine with two cores; only their ratios count, because the time left is computed from the time
# that the share which is done has taken here.
progress_total() { progress_all=$1 progress_done=0 progress_start=$SECONDS; }
progress_line() { # TEXT
    local spent=$((SECONDS - progress_start)) left=$progress_all share=0
    if ((progress_all > 0)); then share=$((100 * progress_done / progress_all)); fi
    ((share < 100)) || share=99 # until the end it is not the whole
    if ((progress_done > 0)); then left=$((spent * (progress_all - progress_done) / progress_done)); fi
    ((left > 0)) || left=0
    printf '[%3d%%, %d:%02d left] %s\n' $share $((left / 60)) $((left % 60)) "$1"
}
progress() { # SECONDS TEXT
    progress_line "$2"
    progress_done=$((progress_done + $1))
}
progress_parts() { progress_first=$progress_done progress_seconds=$1 progress_count=$(($2 > 0 ? $2 : 1)) progress_at=0; }
progress_part() { # TEXT
    progress_at=$((progress_at + 1))
    progress_done=$((progress_first + progress_seconds * progress_at / progress_count))
    progress_line "$1"
}
