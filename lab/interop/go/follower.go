package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
)

// version is one that a document had.
type version struct {
	vbid    uint16
	seqno   uint64
	value   string
	isThere bool
}

// track is where a vbucket's stream is.
type track struct {
	log       []gocbcore.FailoverEntry
	last      uint64
	snapshot  [2]uint64
	isOpen    bool
	isOpening bool
}

// Follower keeps every version of every document, and resumes every stream that ends: from its last seqno, within its
// snapshot, on the newest branch that it knows. What a rollback takes back it forgets.
type Follower struct {
	sync.Mutex
	feed      *Feed
	versions  map[document][]version
	tracks    map[uint16]*track
	rollbacks int
	resumed   int
	wrong     error
	isOver    bool
}

func newFollower(feed *Feed) *Follower {
	f := &Follower{feed: feed, versions: map[document][]version{}, tracks: map[uint16]*track{}}
	for vbid := 0; vbid < feed.vbuckets; vbid++ {
		f.tracks[uint16(vbid)] = &track{}
	}
	return f
}

// run opens what is not open, until stop.
func (f *Follower) run() {
	for {
		f.Lock()
		isOver := f.isOver
		for vbid, t := range f.tracks {
			if !isOver && !t.isOpen && !t.isOpening {
				t.isOpening = true
				go f.open(vbid)
			}
		}
		f.Unlock()
		if isOver {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (f *Follower) stop() {
	f.Lock()
	defer f.Unlock()
	f.isOver = true
}

// position is where a stream goes on.
func (t *track) position() Position {
	last := gocbcore.SeqNo(t.last)
	start, end := gocbcore.SeqNo(t.snapshot[0]), gocbcore.SeqNo(t.snapshot[1])
	if last == end || last < start {
		start, end = last, last
	}
	var branch gocbcore.VbUUID
	// The newest branch that begins below the seqno: a rollback may have led below the newest one.
	for index := len(t.log) - 1; index >= 0; index-- {
		if entry := t.log[index]; entry.SeqNo < last {
			branch = entry.VbUUID
		}
	}
	return Position{branch, last, start, end}
}

func (f *Follower) open(vbid uint16) {
	f.Lock()
	t := f.tracks[vbid]
	from := t.position()
	if from.seqno > 0 {
		f.resumed++
	}
	t.isOpen = true // the first frames come before the answer is handed over
	f.Unlock()
	log, err := f.feed.open(vbid, from, endless, f, gocbcore.OpenStreamOptions{})
	f.Lock()
	defer f.Unlock()
	t.isOpening = false
	var rollback gocbcore.DCPRollbackError
	switch {
	case err == nil:
		t.log = log
	case errors.As(err, &rollback):
		t.isOpen = false
		f.takeBack(vbid, t, uint64(rollback.SeqNo))
	default: // a node is gone, or the map is: the next attempt asks again
		t.isOpen = false
	}
}

// takeBack forgets what is above a seqno.
func (f *Follower) takeBack(vbid uint16, t *track, seqno uint64) {
	f.rollbacks++
	for id, versions := range f.versions {
		kept := versions[:0]
		for _, each := range versions {
			if each.vbid != vbid || each.seqno <= seqno {
				kept = append(kept, each)
			}
		}
		f.versions[id] = kept
	}
	t.last, t.snapshot = seqno, [2]uint64{seqno, seqno}
}

// present is what there is of a collection, key to value.
func (f *Follower) present(collection uint32) map[string]string {
	f.Lock()
	defer f.Unlock()
	found := map[string]string{}
	for id, versions := range f.versions {
		if id.collection == collection && len(versions) > 0 && versions[len(versions)-1].isThere {
			found[id.key] = versions[len(versions)-1].value
		}
	}
	return found
}

func (f *Follower) trouble() error {
	f.Lock()
	defer f.Unlock()
	return f.wrong
}

// took notes a seqno: each comes once, in its order, within its snapshot.
func (f *Follower) took(vbid uint16, seqno uint64) {
	t := f.tracks[vbid]
	if seqno <= t.last {
		f.wrong = fmt.Errorf("vbucket %d: seqno %d after %d", vbid, seqno, t.last)
	}
	if seqno < t.snapshot[0] || seqno > t.snapshot[1] {
		f.wrong = fmt.Errorf("vbucket %d: seqno %d outside of its snapshot %v", vbid, seqno, t.snapshot)
	}
	t.last = seqno
}

func (f *Follower) keep(vbid uint16, collection uint32, key []byte, seqno uint64, value []byte, isThere bool) {
	f.Lock()
	defer f.Unlock()
	f.took(vbid, seqno)
	id := document{collection, string(key)}
	f.versions[id] = append(f.versions[id], version{vbid, seqno, string(value), isThere})
}

func (f *Follower) pass(vbid uint16, seqno uint64) {
	f.Lock()
	defer f.Unlock()
	f.took(vbid, seqno)
}

// SnapshotMarker of the library's interface; so are all that follow.
func (f *Follower) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	f.Lock()
	defer f.Unlock()
	f.tracks[m.VbID].snapshot = [2]uint64{m.StartSeqNo, m.EndSeqNo}
}

func (f *Follower) Mutation(m gocbcore.DcpMutation) {
	f.keep(m.VbID, m.CollectionID, m.Key, m.SeqNo, m.Value, true)
}

func (f *Follower) Deletion(d gocbcore.DcpDeletion) {
	f.keep(d.VbID, d.CollectionID, d.Key, d.SeqNo, nil, false)
}

func (f *Follower) Expiration(e gocbcore.DcpExpiration) {
	f.keep(e.VbID, e.CollectionID, e.Key, e.SeqNo, nil, false)
}

func (f *Follower) End(e gocbcore.DcpStreamEnd, _ error) {
	f.Lock()
	defer f.Unlock()
	f.tracks[e.VbID].isOpen = false
}

func (f *Follower) CreateCollection(e gocbcore.DcpCollectionCreation) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) CreateScope(e gocbcore.DcpScopeCreation) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) DeleteCollection(e gocbcore.DcpCollectionDeletion) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) FlushCollection(e gocbcore.DcpCollectionFlush) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) DeleteScope(e gocbcore.DcpScopeDeletion) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) ModifyCollection(e gocbcore.DcpCollectionModification) { f.pass(e.VbID, e.SeqNo) }

func (f *Follower) OSOSnapshot(gocbcore.DcpOSOSnapshot) {}

func (f *Follower) SeqNoAdvanced(s gocbcore.DcpSeqNoAdvanced) { f.pass(s.VbID, s.SeqNo) }
