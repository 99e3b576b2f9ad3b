#!/usr/bin/env bash
# perl: files, directories, in-place editing, locks, sparse writes, pipes, sockets, DB_File-less.
# needs: perl
set -eu
cd "$1"
cat >t.pl <<'END'
use strict; use warnings; use Fcntl; use Fcntl qw(:flock :seek :mode);
use File::Path qw(make_path remove_tree);
use File::Copy; use File::Find; use File::Temp qw(tempfile); use IO::Socket::UNIX; use Cwd;
make_path('a/b/c', 'a/d'); open my $f, '+>', 'a/f' or die $!; print $f "line $_\n" for 1 .. 1000;
seek $f, 0, SEEK_SET;
my @l = <$f>; print scalar(@l), " $l[500]"; truncate $f, 100; close $f; print -s 'a/f', "\n";
sysopen my $x, 'a/x', O_RDWR | O_CREAT | O_EXCL, 0600 or die; sysseek $x, 1 << 20, 0;
syswrite $x, 'end'; print -s $x, "\n";
print sysopen(my $y, 'a/x', O_CREAT | O_EXCL | O_RDWR) ? 'no' : "$!", "\n";
flock $x, LOCK_EX or die;
my $pid = fork;
if (!$pid) {
    open my $z, '<', 'a/x'; print flock($z, LOCK_SH | LOCK_NB) ? "got\n" : "held\n"; exit 3
}
waitpid $pid, 0;
print $? >> 8, "\n";
copy('a/f', 'a/g'); move('a/g', 'a/b/g'); link 'a/f', 'a/h'; symlink 'f', 'a/s';
print readlink('a/s'), ' ', (stat 'a/f')[3], "\n";
utime 1000000000, 1000000001, 'a/f'; print join(' ', (stat 'a/f')[8, 9]), "\n"; chmod 0751, 'a/f';
printf "%o\n", S_IMODE((stat 'a/f')[2]);
opendir my $d, 'a'; print join(' ', sort grep !/^\./, readdir $d), "\n"; rewinddir $d;
print scalar(my @e = readdir $d), "\n"; my $n = 0; find(sub { $n++ }, 'a'); print "$n\n";
my ($t, $name) = tempfile(DIR => 'a', UNLINK => 1); print $t "x" x 5000; close $t;
print -s $name, "\n"; chdir 'a/b'; print((getcwd() =~ m,/a/b$,) ? "cwd\n" : "?\n"); chdir '../..';
my $s = IO::Socket::UNIX->new(Local => 'sock', Listen => 1) or print "socket $!\n";
print -S 'sock' ? "socket\n" : "none\n";
if (!fork) { my $c = IO::Socket::UNIX->new(Peer => 'sock') or exit 9; print $c "hello\n"; exit }
if ($s) { my $c = $s->accept; print scalar <$c>; } wait;
open my $p, '-|', 'cat a/f | wc -c' or die; print <$p>; close $p; open my $o, '>&', \*STDOUT;
open STDOUT, '>', 'captured'; system 'echo from child'; print "and us\n"; close STDOUT;
open STDOUT, '>&', $o;
open my $c, '<', 'captured'; print sort <$c>; rename 'a/f', 'a/b/g' or die;
print -e 'a/f' ? 'there' : 'gone', "\n"; unlink 'a/x'; rmdir 'a/b' or print "$!\n";
remove_tree('a/b'); print -d 'a/b' ? 'there' : 'gone', "\n";
END
perl t.pl; perl -pi.orig -e 's/print/PRINT/' t.pl; grep -c PRINT t.pl
perl -i -ne 'print unless $. == 1' t.pl; wc -l <t.pl
