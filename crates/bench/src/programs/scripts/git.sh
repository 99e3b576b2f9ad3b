# git: four commits of a tree, status, a clone and gc.
prepare() { tree src $((60 * N)); }

work() {
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
    export GIT_CONFIG_NOSYSTEM=1
    cd src
    git init -q -b main .
    git add .
    git commit -qm first
    for i in 1 2 3; do
        some . $((4 + i)) | grep '\.c$' | while read -r file; do echo "int i$i;" >>"$file"; done
        git add -A
        git commit -qm "change $i"
        git status --short
    done
    git clone -q . ../clone
    git gc -q
    git rev-parse HEAD
    git -C ../clone status --short
}
