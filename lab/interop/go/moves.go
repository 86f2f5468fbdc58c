package main

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const (
	// keys of each kind, durable and plain; they are written in turn.
	keys = 60
	// patience is the longest time in which no write succeeds, and the longest wait for all documents.
	patience = 60 * time.Second
	// pause before a write that failed is repeated.
	pause = 10 * time.Millisecond
	// durableTimeout after which a node gives a durable write up.
	durableTimeout = 5 * time.Second
)

// What the library hands to the application: it has not succeeded, or nobody knows.
var retried = []error{
	gocbcore.ErrTimeout, gocbcore.ErrDurabilityAmbiguous, gocbcore.ErrDurableWriteInProgress,
	gocbcore.ErrRequestCanceled, gocbcore.ErrTemporaryFailure, gocbcore.ErrSocketClosed, errTimeout,
}

// movesJudge writes, reads and follows while the nodes of a cluster come, are killed and are replaced.
type movesJudge struct {
	sync.Mutex
	space        Keyspace
	collection   uint32
	follower     *Follower
	acknowledged map[string]int
	rounds       int
	refused      int
	err          error
	isOver       bool
	ended        chan struct{}
}

func movesParts(settings Settings) ([]Part, func(), error) {
	agent, err := newAgent(settings)
	if err != nil {
		return nil, nil, err
	}
	feed, err := newFeed(settings, 0, nil)
	if err != nil {
		return nil, nil, err
	}
	m := &movesJudge{
		space: Keyspace{agent, "shop", "orders"}, follower: newFollower(feed),
		acknowledged: map[string]int{}, ended: make(chan struct{}),
	}
	if m.collection, err = m.space.id(); err != nil {
		return nil, nil, err
	}
	go m.follower.run()
	go m.write()
	parts := []Part{
		{"writes and reads while a node is added", func() error { return m.during("grow") }},
		{"writes and reads while a node is killed and failed over", func() error { return m.during("kill") }},
		{"writes and reads while the killed node is replaced", func() error { return m.during("grow") }},
		{"every acknowledged durable write is there", m.compare},
		{"streams are resumed, and every change comes once", m.followed},
	}
	end := func() {
		m.follower.stop()
		_ = feed.agent.Close()
		_ = agent.Close()
	}
	return parts, end, nil
}

func (m *movesJudge) put(key string, number int, isDurable bool) error {
	options := gocbcore.SetOptions{
		Key: []byte(key), Value: []byte(strconv.Itoa(number)), Flags: jsonFlags, Deadline: soon(),
		ScopeName: "shop", CollectionName: "orders",
	}
	if isDurable {
		options.DurabilityLevel, options.DurabilityLevelTimeout = memd.DurabilityLevelMajority, durableTimeout
	}
	_, err := wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		return m.space.agent.Set(options, done)
	})
	return err
}

// number under a key, -1 for none.
func (m *movesJudge) number(key string) (int, error) {
	got, err := m.space.get(key)
	if errors.Is(err, gocbcore.ErrDocumentNotFound) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(got.Value))
}

// again repeats a call as an application does.
func again(call func() error) error {
	end := time.Now().Add(patience)
	for {
		err := call()
		isRetried := false
		for _, each := range retried {
			isRetried = isRetried || errors.Is(err, each)
		}
		if err == nil || !isRetried || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

func (m *movesJudge) write() {
	defer close(m.ended)
	for number := 0; ; number++ {
		durable, plain := fmt.Sprintf("durable:%d", number%keys), fmt.Sprintf("plain:%d", number%keys)
		found := 0
		err := again(func() error { return m.put(durable, number, true) })
		// The vbucket has too few copies, as after a failover without a second replica: nothing was written.
		isImpossible := errors.Is(err, gocbcore.ErrDurabilityImpossible)
		m.Lock()
		if isImpossible {
			m.refused++
		} else if err == nil {
			m.acknowledged[durable] = number
		}
		m.Unlock()
		if err == nil || isImpossible {
			err = again(func() error { return m.put(plain, number, false) })
		}
		if err == nil {
			err = again(func() (err error) { found, err = m.number(plain); return err })
		}
		if err == nil {
			err = want(found <= number, "%s is %d, and %d was written last", plain, found, number)
		}
		m.Lock()
		m.err, m.rounds = err, number+1
		isOver := m.isOver
		m.Unlock()
		if err != nil || isOver {
			return
		}
	}
}

func (m *movesJudge) until(rounds int) error {
	end := time.Now().Add(patience)
	for {
		m.Lock()
		err, found := m.err, m.rounds
		m.Unlock()
		if err != nil || found >= rounds {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d writes, %d were expected", found, rounds)
		}
		time.Sleep(pause)
	}
}

// counts are those of durable writes that could not be, and of all.
func (m *movesJudge) counts() (refused, rounds int) {
	m.Lock()
	defer m.Unlock()
	return m.refused, m.rounds
}

// during has every document written before an action and after it.
func (m *movesJudge) during(action string) error {
	if err := m.until(keys); err != nil {
		return err
	}
	if err := order(action); err != nil {
		return err
	}
	_, rounds := m.counts()
	if err := m.until(rounds + 1); err != nil { // the one that was under way may have begun before
		return err
	}
	before, rounds := m.counts()
	if err := all(m.until(rounds+keys), m.follower.trouble()); err != nil || action == "kill" {
		return err
	}
	refused, _ := m.counts()
	return want(refused == before, "a durable write is impossible, and every vbucket has its replica")
}

func (m *movesJudge) compare() error {
	m.Lock()
	m.isOver = true
	m.Unlock()
	<-m.ended
	if m.err != nil {
		return m.err
	}
	if err := want(len(m.acknowledged) == keys, "%d durable documents", len(m.acknowledged)); err != nil {
		return err
	}
	for key, number := range m.acknowledged {
		found := 0
		if err := again(func() (err error) { found, err = m.number(key); return err }); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if found < number {
			return fmt.Errorf("%s is %d, acknowledged was %d", key, found, number)
		}
	}
	return nil
}

// followed waits until the follower has what the bucket has.
func (m *movesJudge) followed() error {
	expected := map[string]string{}
	for number := 0; number < keys; number++ {
		for _, key := range []string{fmt.Sprintf("durable:%d", number), fmt.Sprintf("plain:%d", number)} {
			found := 0
			if err := again(func() (err error) { found, err = m.number(key); return err }); err != nil {
				return err
			}
			if found >= 0 {
				expected[key] = strconv.Itoa(found)
			}
		}
	}
	end := time.Now().Add(patience)
	for !maps.Equal(m.follower.present(m.collection), expected) {
		if time.Now().After(end) {
			return fmt.Errorf("the streams brought %d documents, the bucket has %d: %v instead of %v",
				len(m.follower.present(m.collection)), len(expected), m.follower.present(m.collection), expected)
		}
		time.Sleep(pause)
	}
	return all(m.follower.trouble(), want(m.follower.resumed > 0, "no stream was resumed"))
}
