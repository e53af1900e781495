#!/bin/sh
# Start a job script and leave; print its number, as a cluster's submit command does.
nohup sh "$1" > "$1.out" 2>&1 &
echo $!
