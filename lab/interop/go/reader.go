package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

// Reader goes on from a recorded position of vbucket 0, as connectors do, and prints what comes. Its position is that of
// the last change or SEQNO_ADVANCED, within the newest snapshot.
type Reader struct {
	sync.Mutex
	settings Settings
	at       track
	vbuuid   gocbcore.VbUUID
	changes  int
	isFull   bool
	hasEnded bool
	isOSO    bool
	news     chan struct{}
	atChange func()
}

// readParts is the program `read`: one part, which prints a line for each change.
func readParts(settings Settings) ([]Part, func(), error) {
	reader := &Reader{settings: settings, news: make(chan struct{}, 1)}
	return []Part{{"read", reader.read}}, func() {}, reader.load()
}

func (r *Reader) load() error {
	text, err := os.ReadFile(r.settings.position)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = fmt.Sscan(string(text), &r.vbuuid, &r.at.last, &r.at.snapshot[0], &r.at.snapshot[1])
	}
	return err
}

func (r *Reader) save() error {
	r.Lock()
	defer r.Unlock()
	if r.isOSO { // nothing of an unfinished out-of-order snapshot may be recorded
		return nil
	}
	line := fmt.Sprintln(uint64(r.vbuuid), r.at.last, r.at.snapshot[0], r.at.snapshot[1])
	return os.WriteFile(r.settings.position, []byte(line), 0o600)
}

func (r *Reader) read() error {
	options := gocbcore.OpenStreamOptions{}
	if r.settings.collections != "" {
		ids, err := r.ids()
		if err != nil {
			return err
		}
		options = filter(0, ids...)
	}
	flags := memd.DcpOpenFlag(0)
	if r.settings.keysOnly {
		flags = memd.DcpOpenFlagNoValue
	}
	feed, err := newFeed(r.settings, flags, func(config *gocbcore.DCPAgentConfig) {
		config.DCPConfig.UseOSOBackfill = r.settings.outOfOrder
		if r.settings.reopen > 0 {
			config.DCPConfig.BufferSize = 1000
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = feed.agent.Close() }()
	if r.settings.reopen > 0 {
		err = r.closeAndOpen(feed, options)
	} else {
		err = r.open(feed, endless, options)
	}
	if err != nil {
		return err
	}
	r.quiet(feed, options)
	return r.save()
}

// closeAndOpen closes a stream to the high seqno while messages wait for room, and opens it again from the position.
func (r *Reader) closeAndOpen(feed *Feed, options gocbcore.OpenStreamOptions) error {
	seqnos, err := feed.seqnos(nil)
	if err != nil {
		return err
	}
	closed := make(chan error, 1)
	r.atChange = func() { // the request goes out before the library acknowledges what it handed over
		go func() { closed <- feed.closeStream(0) }()
		time.Sleep(200 * time.Millisecond)
	}
	if err := r.open(feed, seqnos[0], options); err != nil {
		return err
	}
	select {
	case err := <-closed:
		fmt.Println("closed", err)
	case <-time.After(opTimeout):
		return errTimeout
	}
	err = r.open(feed, endless, options)
	if errors.Is(err, gocbcore.ErrMemdKeyExists) { // the stream was not closed; it is opened again when it has ended
		err = nil
	}
	return err
}

func (r *Reader) ids() ([]uint32, error) {
	agent, err := newAgent(r.settings)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Close() }()
	var ids []uint32
	for _, name := range strings.Split(r.settings.collections, ",") {
		scope, collection, _ := strings.Cut(name, ".")
		id, err := Keyspace{agent, scope, collection}.id()
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (r *Reader) open(feed *Feed, end gocbcore.SeqNo, options gocbcore.OpenStreamOptions) error {
	for {
		r.Lock()
		from := r.at.position()
		from.vbuuid = r.vbuuid
		r.Unlock()
		log, err := feed.open(0, from, end, r, options)
		var rollback gocbcore.DCPRollbackError
		if errors.As(err, &rollback) {
			fmt.Println("rollback")
			r.Lock()
			r.at, r.vbuuid = track{}, 0
			r.Unlock()
			continue
		}
		if err == nil {
			r.Lock()
			r.vbuuid = log[0].VbUUID
			r.Unlock()
		}
		return err
	}
}

// quiet returns when nothing has come for a while, or when there is enough. A stream that ends is opened again.
func (r *Reader) quiet(feed *Feed, options gocbcore.OpenStreamOptions) {
	pause := time.Duration(r.settings.quiet) * time.Millisecond
	for timer := time.NewTimer(pause); ; timer.Reset(pause) {
		select {
		case <-r.news:
		case <-timer.C:
			return
		}
		r.Lock()
		isFull, hasEnded := r.isFull, r.hasEnded
		r.hasEnded = false
		r.Unlock()
		if isFull {
			return
		}
		if hasEnded {
			time.Sleep(100 * time.Millisecond)
			err := r.open(feed, endless, options)
			if err != nil && !errors.Is(err, gocbcore.ErrMemdKeyExists) { // it is that of a stream that was opened again
				fmt.Println("not opened", err)
				r.Lock()
				r.hasEnded = true
				r.Unlock()
				r.tell()
			}
		}
	}
}

func (r *Reader) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// change prints a change and moves the position, unless there is enough.
func (r *Reader) change(op string, key, value []byte, seqno uint64) {
	r.Lock()
	defer r.Unlock()
	if r.isFull {
		return
	}
	if op != "" {
		fmt.Println(op, base64.StdEncoding.EncodeToString(key), base64.StdEncoding.EncodeToString(value), seqno)
		r.changes++
		r.isFull = r.changes == r.settings.count
		if r.changes == r.settings.reopen {
			r.atChange()
		}
	}
	r.at.last = max(seqno, r.at.last)
	r.tell()
}

// SnapshotMarker of the library's interface; so are all that follow.
func (r *Reader) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	r.Lock()
	defer r.Unlock()
	if !r.isFull {
		r.at.snapshot = [2]uint64{m.StartSeqNo, m.EndSeqNo}
	}
}

func (r *Reader) Mutation(m gocbcore.DcpMutation)     { r.change("mutation", m.Key, m.Value, m.SeqNo) }
func (r *Reader) Deletion(d gocbcore.DcpDeletion)     { r.change("deletion", d.Key, nil, d.SeqNo) }
func (r *Reader) Expiration(e gocbcore.DcpExpiration) { r.change("deletion", e.Key, nil, e.SeqNo) }

func (r *Reader) End(_ gocbcore.DcpStreamEnd, err error) {
	fmt.Println("end", err)
	r.Lock()
	r.hasEnded = true
	r.Unlock()
	r.tell()
}

func (r *Reader) OSOSnapshot(s gocbcore.DcpOSOSnapshot) {
	r.Lock()
	defer r.Unlock()
	r.isOSO = s.SnapshotType == 1
	r.at.snapshot = [2]uint64{r.at.last, r.at.last}
}

func (r *Reader) SeqNoAdvanced(s gocbcore.DcpSeqNoAdvanced) { r.change("", nil, nil, s.SeqNo) }
func (r *Reader) CreateCollection(e gocbcore.DcpCollectionCreation) {
	r.change("event", nil, nil, e.SeqNo)
}
func (r *Reader) CreateScope(e gocbcore.DcpScopeCreation) { r.change("event", nil, nil, e.SeqNo) }
func (r *Reader) DeleteCollection(e gocbcore.DcpCollectionDeletion) {
	r.change("event", nil, nil, e.SeqNo)
}
func (r *Reader) FlushCollection(e gocbcore.DcpCollectionFlush) { r.change("event", nil, nil, e.SeqNo) }
func (r *Reader) DeleteScope(e gocbcore.DcpScopeDeletion)       { r.change("event", nil, nil, e.SeqNo) }
func (r *Reader) ModifyCollection(e gocbcore.DcpCollectionModification) {
	r.change("event", nil, nil, e.SeqNo)
}
