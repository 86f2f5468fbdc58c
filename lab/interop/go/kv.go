package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const jsonFlags = 0x02000000

func kvParts(settings Settings) ([]Part, func(), error) {
	agent, err := newAgent(settings)
	if err != nil {
		return nil, nil, err
	}
	k := &kvJudge{Keyspace{agent, "", ""}, settings}
	parts := []Part{
		{"set and get, flags and mutation tokens", k.setAndGet},
		{"add", k.adds},
		{"replace and delete with CAS", k.casRules},
		{"append and prepend", k.adjoins},
		{"counters", k.counters},
		{"touch and get-and-touch", k.touches},
		{"get-and-lock and unlock", k.locks},
		{"get, set and delete with metadata", k.metadata},
		{"lookup in", k.lookups},
		{"mutate in", k.mutations},
		{"subdocument errors", k.pathErrors},
		{"extended attributes", k.xattrs},
		{"durable writes", k.durable},
		{"preserve expiry", k.preserveExpiry},
		{"large and compressible values", k.largeValues},
		{"named collections", k.collections},
		{"unknown collection", k.unknownCollection},
		{"manifest", k.manifest},
		{"random document", k.random},
		{"statistics", k.stats},
		{"observe by seqno", k.observe},
		{"replica reads with no replica", k.replicas},
		{"range scan", k.rangeScan},
		{"ping", k.ping},
		{fmt.Sprintf("%d keys at once, read back", settings.count), k.many},
	}
	return parts, func() { _ = agent.Close() }, nil
}

type kvJudge struct {
	Keyspace
	settings Settings
}

func (k *kvJudge) setAndGet() error {
	stored, err := k.set("doc", []byte(`{"a":1}`), 0)
	if err != nil {
		return err
	}
	got, err := k.get("doc")
	if err != nil {
		return err
	}
	return all(
		want(string(got.Value) == `{"a":1}`, "value %q", got.Value),
		want(got.Flags == jsonFlags, "flags %x", got.Flags),
		want(got.Cas == stored.Cas, "CAS %x, stored %x", got.Cas, stored.Cas),
		want(stored.MutationToken.SeqNo > 0 && stored.MutationToken.VbUUID != 0, "token %+v", stored.MutationToken),
	)
}

func (k *kvJudge) adds() error {
	_, err := k.add("added", []byte(`1`))
	_, again := k.add("added", []byte(`2`))
	return all(err, refused(again, gocbcore.ErrDocumentExists))
}

func (k *kvJudge) casRules() error {
	stored, err := k.set("cas", []byte(`1`), 0)
	if err != nil {
		return err
	}
	_, wrong := k.replace("cas", []byte(`2`), stored.Cas+1)
	replaced, right := k.replace("cas", []byte(`3`), stored.Cas)
	if right != nil {
		return right
	}
	_, old := k.remove("cas", stored.Cas)
	_, deleted := k.remove("cas", replaced.Cas)
	_, gone := k.get("cas")
	_, twice := k.remove("cas", 0)
	_, none := k.replace("cas", []byte(`4`), 0)
	return all(
		refused(wrong, gocbcore.ErrCasMismatch), refused(old, gocbcore.ErrCasMismatch), deleted,
		refused(gone, gocbcore.ErrDocumentNotFound), refused(twice, gocbcore.ErrDocumentNotFound),
		refused(none, gocbcore.ErrDocumentNotFound),
	)
}

func (k *kvJudge) adjoin(key, value string, isAppend bool) error {
	_, err := wait(func(done func(*gocbcore.AdjoinResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.AdjoinOptions{Key: []byte(key), Value: []byte(value), Deadline: soon()}
		if isAppend {
			return k.agent.Append(options, done)
		}
		return k.agent.Prepend(options, done)
	})
	return err
}

func (k *kvJudge) adjoins() error {
	if _, err := k.set("joined", []byte("middle"), 0); err != nil {
		return err
	}
	if err := all(k.adjoin("joined", "-end", true), k.adjoin("joined", "start-", false)); err != nil {
		return err
	}
	got, err := k.get("joined")
	if err != nil {
		return err
	}
	return all(
		want(string(got.Value) == "start-middle-end", "value %q", got.Value),
		refused(k.adjoin("nosuch", "x", true), gocbcore.ErrNotStored),
	)
}

func (k *kvJudge) count(key string, delta, initial uint64, isUp bool) (*gocbcore.CounterResult, error) {
	return wait(func(done func(*gocbcore.CounterResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.CounterOptions{Key: []byte(key), Delta: delta, Initial: initial, Deadline: soon()}
		if isUp {
			return k.agent.Increment(options, done)
		}
		return k.agent.Decrement(options, done)
	})
}

func (k *kvJudge) counters() error {
	var values []uint64
	for _, step := range []struct {
		delta uint64
		isUp  bool
	}{{1, true}, {5, true}, {3, false}, {100, false}} {
		got, err := k.count("counter", step.delta, 10, step.isUp)
		if err != nil {
			return err
		}
		values = append(values, got.Value)
	}
	_, missing := k.count("nosuch", 1, 0xffffffffffffffff, true)
	if _, err := k.set("text", []byte(`"x"`), 0); err != nil {
		return err
	}
	_, bad := k.count("text", 1, 0, true)
	return all(
		want(fmt.Sprint(values) == "[10 15 12 0]", "values %v", values),
		refused(missing, gocbcore.ErrDocumentNotFound),
		want(bad != nil, "counting a text succeeded"),
	)
}

func (k *kvJudge) meta(key string) (*gocbcore.GetMetaResult, error) {
	return wait(func(done func(*gocbcore.GetMetaResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.GetMeta(gocbcore.GetMetaOptions{Key: []byte(key), Deadline: soon()}, done)
	})
}

func (k *kvJudge) touches() error {
	if _, err := k.set("touched", []byte(`1`), 0); err != nil {
		return err
	}
	_, err := wait(func(done func(*gocbcore.TouchResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.Touch(gocbcore.TouchOptions{Key: []byte("touched"), Expiry: 1000, Deadline: soon()}, done)
	})
	if err != nil {
		return err
	}
	first, err := k.meta("touched")
	if err != nil {
		return err
	}
	got, err := wait(func(done func(*gocbcore.GetAndTouchResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.GetAndTouchOptions{Key: []byte("touched"), Expiry: 2000, Deadline: soon()}
		return k.agent.GetAndTouch(options, done)
	})
	if err != nil {
		return err
	}
	second, err := k.meta("touched")
	if err != nil {
		return err
	}
	now := uint32(time.Now().Unix())
	return all(
		want(string(got.Value) == "1" && got.Flags == jsonFlags, "got %q with flags %x", got.Value, got.Flags),
		want(first.Expiry-now > 980 && first.Expiry-now <= 1001, "expires in %d s", first.Expiry-now),
		want(second.Expiry-now > 1980 && second.Expiry-now <= 2001, "expires in %d s", second.Expiry-now),
	)
}

func (k *kvJudge) lock(key string) (*gocbcore.GetAndLockResult, error) {
	return wait(func(done func(*gocbcore.GetAndLockResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.GetAndLockOptions{Key: []byte(key), LockTime: 20, Deadline: soon()}
		return k.agent.GetAndLock(options, done)
	})
}

func (k *kvJudge) unlock(key string, cas gocbcore.Cas) error {
	_, err := wait(func(done func(*gocbcore.UnlockResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.UnlockOptions{Key: []byte(key), Cas: cas, Deadline: soon()}
		return k.agent.Unlock(options, done)
	})
	return err
}

func (k *kvJudge) locks() error {
	if _, err := k.set("locked", []byte(`1`), 0); err != nil {
		return err
	}
	locked, err := k.lock("locked")
	if err != nil {
		return err
	}
	_, twice := k.lock("locked")
	_, written := wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.SetOptions{Key: []byte("locked"), Value: []byte(`2`), Deadline: soon()}
		return k.agent.Set(options, done)
	})
	got, read := k.get("locked")
	if read != nil {
		return read
	}
	wrong := k.unlock("locked", locked.Cas+1)
	right := k.unlock("locked", locked.Cas)
	_, after := k.set("locked", []byte(`3`), 0)
	return all(
		want(string(locked.Value) == "1", "value %q", locked.Value),
		refused(twice, gocbcore.ErrDocumentLocked), refused(written, gocbcore.ErrDocumentLocked),
		want(got.Cas != locked.Cas, "a reader got the CAS of the lock"),
		want(wrong != nil, "unlocked with a wrong CAS"), right, after,
		want(k.unlock("locked", locked.Cas) != nil, "unlocked what was not locked"),
	)
}

func (k *kvJudge) metadata() error {
	_, err := wait(func(done func(*gocbcore.SetMetaResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.SetMeta(gocbcore.SetMetaOptions{
			Key: []byte("meta"), Value: []byte(`{"m":1}`), Flags: 7, Cas: 0x1234560000, RevNo: 50, Deadline: soon(),
		}, done)
	})
	if err != nil {
		return err
	}
	found, err := k.meta("meta")
	if err != nil {
		return err
	}
	got, err := k.get("meta")
	if err != nil {
		return err
	}
	_, deleted := wait(func(done func(*gocbcore.DeleteMetaResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.DeleteMeta(gocbcore.DeleteMetaOptions{
			Key: []byte("meta"), Cas: 0x1234570000, RevNo: 51, Deadline: soon(),
		}, done)
	})
	tombstone, err := k.meta("meta")
	if err != nil {
		return err
	}
	return all(
		want(found.SeqNo == 50 && found.Flags == 7 && found.Cas == 0x1234560000, "metadata %+v", found),
		want(string(got.Value) == `{"m":1}` && got.Cas == 0x1234560000, "got %+v", got),
		deleted, want(tombstone.Deleted == 1 && tombstone.SeqNo == 51, "tombstone %+v", tombstone),
	)
}

func (k *kvJudge) lookup(key string, flags memd.SubdocDocFlag, ops ...gocbcore.SubDocOp) (*gocbcore.LookupInResult, error) {
	return wait(func(done func(*gocbcore.LookupInResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.LookupIn(gocbcore.LookupInOptions{Key: []byte(key), Ops: ops, Flags: flags, Deadline: soon()}, done)
	})
}

func (k *kvJudge) mutate(key string, flags memd.SubdocDocFlag, ops ...gocbcore.SubDocOp) (*gocbcore.MutateInResult, error) {
	return wait(func(done func(*gocbcore.MutateInResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.MutateIn(gocbcore.MutateInOptions{Key: []byte(key), Ops: ops, Flags: flags, Deadline: soon()}, done)
	})
}

func (k *kvJudge) lookups() error {
	if _, err := k.set("sub", []byte(`{"a":{"b":[10,20,{"c":"x"}]},"n":5}`), 0); err != nil {
		return err
	}
	got, err := k.lookup("sub", 0,
		gocbcore.SubDocOp{Op: memd.SubDocOpGet, Path: "a.b[2].c"},
		gocbcore.SubDocOp{Op: memd.SubDocOpGet, Path: "a.b[-1]"},
		gocbcore.SubDocOp{Op: memd.SubDocOpExists, Path: "n"},
		gocbcore.SubDocOp{Op: memd.SubDocOpGetCount, Path: "a.b"},
		gocbcore.SubDocOp{Op: memd.SubDocOpGet, Path: "nosuch"},
	)
	if err != nil {
		return err
	}
	return all(
		want(string(got.Ops[0].Value) == `"x"`, "a.b[2].c is %s (%v)", got.Ops[0].Value, got.Ops[0].Err),
		want(string(got.Ops[1].Value) == `{"c":"x"}`, "a.b[-1] is %s (%v)", got.Ops[1].Value, got.Ops[1].Err),
		got.Ops[2].Err,
		want(string(got.Ops[3].Value) == "3", "count %s (%v)", got.Ops[3].Value, got.Ops[3].Err),
		refused(got.Ops[4].Err, gocbcore.ErrPathNotFound),
	)
}

func (k *kvJudge) mutations() error {
	if _, err := k.set("sub2", []byte(`{"list":[1],"n":5,"old":1}`), 0); err != nil {
		return err
	}
	done, err := k.mutate("sub2", 0,
		gocbcore.SubDocOp{Op: memd.SubDocOpDictSet, Path: "x.y.z", Value: []byte(`"new"`), Flags: memd.SubdocFlagMkDirP},
		gocbcore.SubDocOp{Op: memd.SubDocOpDictAdd, Path: "added", Value: []byte(`true`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpArrayPushLast, Path: "list", Value: []byte(`2,3`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpArrayPushFirst, Path: "list", Value: []byte(`0`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpArrayInsert, Path: "list[1]", Value: []byte(`"in"`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpArrayAddUnique, Path: "list", Value: []byte(`9`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpCounter, Path: "n", Value: []byte(`-7`)},
		gocbcore.SubDocOp{Op: memd.SubDocOpDelete, Path: "old"},
		gocbcore.SubDocOp{Op: memd.SubDocOpReplace, Path: "added", Value: []byte(`false`)},
	)
	if err != nil {
		return err
	}
	got, err := k.get("sub2")
	if err != nil {
		return err
	}
	var is, should any
	_ = json.Unmarshal([]byte(`{"list":[0,"in",1,2,3,9],"n":-2,"x":{"y":{"z":"new"}},"added":false}`), &should)
	if err := json.Unmarshal(got.Value, &is); err != nil {
		return err
	}
	_, created := k.mutate("made", memd.SubdocDocFlagMkDoc,
		gocbcore.SubDocOp{Op: memd.SubDocOpDictSet, Path: "a", Value: []byte(`1`)})
	return all(
		want(fmt.Sprint(is) == fmt.Sprint(should), "document is %s", got.Value),
		want(string(done.Ops[6].Value) == "-2", "counter answered %s", done.Ops[6].Value),
		want(done.MutationToken.SeqNo > 0, "no mutation token"), created,
	)
}

func (k *kvJudge) pathErrors() error {
	if _, err := k.set("sub3", []byte(`{"a":1,"list":[1,1]}`), 0); err != nil {
		return err
	}
	try := func(op memd.SubDocOpType, path, value string) error {
		_, err := k.mutate("sub3", 0, gocbcore.SubDocOp{Op: op, Path: path, Value: []byte(value)})
		return err
	}
	return all(
		refused(try(memd.SubDocOpDictAdd, "a", "2"), gocbcore.ErrPathExists),
		refused(try(memd.SubDocOpReplace, "b", "2"), gocbcore.ErrPathNotFound),
		refused(try(memd.SubDocOpDictSet, "a.b", "2"), gocbcore.ErrPathMismatch),
		refused(try(memd.SubDocOpDictSet, "a..b", "2"), gocbcore.ErrPathInvalid),
		refused(try(memd.SubDocOpArrayAddUnique, "list", "1"), gocbcore.ErrPathExists),
		refused(try(memd.SubDocOpDictSet, strings.Repeat("a.", 40)+"b", "2"), gocbcore.ErrPathTooBig),
		want(try(memd.SubDocOpDictSet, "c", "{no JSON") != nil, "took what is no JSON"),
	)
}

func (k *kvJudge) xattrs() error {
	if _, err := k.set("attributes", []byte(`{"body":1}`), 0); err != nil {
		return err
	}
	path := memd.SubdocFlagXattrPath
	_, err := k.mutate("attributes", 0,
		gocbcore.SubDocOp{Op: memd.SubDocOpDictSet, Path: "mine.cas", Value: []byte(`"${Mutation.CAS}"`),
			Flags: path | memd.SubdocFlagMkDirP | memd.SubdocFlagExpandMacros},
		gocbcore.SubDocOp{Op: memd.SubDocOpDictSet, Path: "body", Value: []byte(`2`)},
	)
	if err != nil {
		return err
	}
	got, err := k.lookup("attributes", 0,
		gocbcore.SubDocOp{Op: memd.SubDocOpGet, Path: "mine.cas", Flags: path},
		gocbcore.SubDocOp{Op: memd.SubDocOpGet, Path: "$document.CAS", Flags: path},
		gocbcore.SubDocOp{Op: memd.SubDocOpGetDoc},
	)
	if err != nil {
		return err
	}
	return all(
		got.Ops[0].Err, got.Ops[1].Err,
		want(len(got.Ops[0].Value) == 20, "CAS macro %s", got.Ops[0].Value),
		want(string(got.Ops[2].Value) == `{"body":2}`, "body %s (%v)", got.Ops[2].Value, got.Ops[2].Err),
	)
}

func (k *kvJudge) durable() error {
	for _, level := range []memd.DurabilityLevel{
		memd.DurabilityLevelMajority, memd.DurabilityLevelMajorityAndPersistOnMaster, memd.DurabilityLevelPersistToMajority,
	} {
		_, err := wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
			return k.agent.Set(gocbcore.SetOptions{
				Key: []byte("durable"), Value: []byte(fmt.Sprint(level)), DurabilityLevel: level,
				DurabilityLevelTimeout: 5 * time.Second, Deadline: soon(),
			}, done)
		})
		if err != nil {
			return fmt.Errorf("level %d: %w", level, err)
		}
	}
	got, err := k.get("durable")
	if err != nil {
		return err
	}
	return want(string(got.Value) == "3", "value %s", got.Value)
}

func (k *kvJudge) preserveExpiry() error {
	if _, err := k.set("kept", []byte(`1`), 5000); err != nil {
		return err
	}
	before, err := k.meta("kept")
	if err != nil {
		return err
	}
	_, err = wait(func(done func(*gocbcore.StoreResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.SetOptions{Key: []byte("kept"), Value: []byte(`2`), PreserveExpiry: true, Deadline: soon()}
		return k.agent.Set(options, done)
	})
	after, err2 := k.meta("kept")
	if err := all(err, err2); err != nil {
		return err
	}
	return want(before.Expiry == after.Expiry && after.Expiry > 0, "expiry %d became %d", before.Expiry, after.Expiry)
}

func (k *kvJudge) largeValues() error {
	for name, value := range map[string][]byte{
		"compressible": []byte(`"` + strings.Repeat("abcdefgh", 50_000) + `"`),
		"large":        []byte(`"` + strings.Repeat("x", 19<<20) + `"`),
		"empty":        {},
		"binary":       {0, 0xff, 1, 2},
	} {
		if _, err := k.set(name, value, 0); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		got, err := k.get(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := want(bytes.Equal(got.Value, value), "%s came back as another (%d bytes)", name, len(got.Value)); err != nil {
			return err
		}
	}
	noise := make([]byte, 20<<20+1)
	state := uint32(1)
	for index := range noise {
		state = state*1664525 + 1013904223
		noise[index] = byte(state >> 24)
	}
	_, tooBig := k.set("too-big", noise, 0)
	_, err := k.remove("large", 0)
	return all(err, refused(tooBig, gocbcore.ErrValueTooLarge))
}

func (k *kvJudge) collections() error {
	named := Keyspace{k.agent, "shop", "orders"}
	other := Keyspace{k.agent, "shop", "returns"}
	_, err := named.set("same", []byte(`1`), 0)
	_, err2 := other.set("same", []byte(`2`), 0)
	if err := all(err, err2); err != nil {
		return err
	}
	got, err := named.get("same")
	if err != nil {
		return err
	}
	_, gone := k.get("same")
	return all(want(string(got.Value) == "1", "value %s", got.Value), refused(gone, gocbcore.ErrDocumentNotFound))
}

// The library asks again for a collection that is unknown until the time is over, so only its id is asked for.
func (k *kvJudge) unknownCollection() error {
	_, err := Keyspace{k.agent, "shop", "nosuch"}.id()
	_, err2 := Keyspace{k.agent, "nosuch", "orders"}.id()
	return all(refused(err, gocbcore.ErrCollectionNotFound), refused(err2, gocbcore.ErrScopeNotFound))
}

// Manifest is the list of scopes and collections; its ids are hexadecimal texts.
type Manifest struct {
	Scopes []struct {
		Name, UID   string
		Collections []struct{ Name, UID string }
	}
}

func manifestOf(agent *gocbcore.Agent) (Manifest, error) {
	var found Manifest
	got, err := wait(func(done func(*gocbcore.GetCollectionManifestResult, error)) (gocbcore.PendingOp, error) {
		return agent.GetCollectionManifest(gocbcore.GetCollectionManifestOptions{Deadline: soon()}, done)
	})
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(got.Manifest, &found)
}

func (m Manifest) scopeID(name string) (uint32, error) {
	for _, scope := range m.Scopes {
		if scope.Name == name {
			id, err := strconv.ParseUint(scope.UID, 16, 32)
			return uint32(id), err
		}
	}
	return 0, fmt.Errorf("no scope %s in %v", name, m.Scopes)
}

func (k *kvJudge) manifest() error {
	found, err := manifestOf(k.agent)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, scope := range found.Scopes {
		for _, collection := range scope.Collections {
			names[scope.Name+"."+collection.Name] = true
		}
	}
	return want(names["_default._default"] && names["shop.orders"] && names["shop.returns"], "collections %v", names)
}

func (k *kvJudge) random() error {
	got, err := wait(func(done func(*gocbcore.GetRandomResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.GetRandomOptions{ScopeName: "shop", CollectionName: "orders", Deadline: soon()}
		return k.agent.GetRandom(options, done)
	})
	if err != nil {
		return err
	}
	id, err := Keyspace{k.agent, "shop", "orders"}.id()
	if err != nil {
		return err
	}
	// The library hands out the key as it comes, with the collection's number before it: one byte, as it is small.
	key := string([]byte{byte(id)}) + "same"
	return want(string(got.Key) == key && string(got.Value) == "1", "got %q: %q", got.Key, got.Value)
}

func (k *kvJudge) stats() error {
	for _, group := range []string{"", "vbucket-seqno", "uuid"} {
		got, err := wait(func(done func(*gocbcore.StatsResult, error)) (gocbcore.PendingOp, error) {
			return k.agent.Stats(gocbcore.StatsOptions{Key: group, Deadline: soon()}, done)
		})
		if err != nil {
			return fmt.Errorf("%q: %w", group, err)
		}
		for server, found := range got.Servers {
			if err := all(found.Error, want(len(found.Stats) > 0, "%q of %s is empty", group, server)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *kvJudge) observe() error {
	stored, err := k.set("observed", []byte(`1`), 0)
	if err != nil {
		return err
	}
	token := stored.MutationToken
	end := time.Now().Add(opTimeout)
	for {
		got, err := wait(func(done func(*gocbcore.ObserveVbResult, error)) (gocbcore.PendingOp, error) {
			options := gocbcore.ObserveVbOptions{VbID: token.VbID, VbUUID: token.VbUUID, Deadline: soon()}
			return k.agent.ObserveVb(options, done)
		})
		if err != nil {
			return err
		}
		if got.PersistSeqNo >= token.SeqNo && got.CurrentSeqNo >= token.SeqNo && !got.DidFailover {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not persisted: %+v", got)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (k *kvJudge) replicas() error {
	_, err := wait(func(done func(*gocbcore.GetReplicaResult, error)) (gocbcore.PendingOp, error) {
		options := gocbcore.GetOneReplicaOptions{Key: []byte("doc"), ReplicaIdx: 1, Deadline: soon()}
		return k.agent.GetOneReplica(options, done)
	})
	return want(err != nil && !errors.Is(err, errTimeout), "expected a refusal, got %v", err)
}

func (k *kvJudge) rangeScan() error {
	stored, err := k.set("scanned", []byte(`{"s":1}`), 0)
	if err != nil {
		return err
	}
	token := stored.MutationToken
	scan, err := wait(func(done func(gocbcore.RangeScanCreateResult, error)) (gocbcore.PendingOp, error) {
		return k.agent.RangeScanCreate(token.VbID, gocbcore.RangeScanCreateOptions{
			Range:    &gocbcore.RangeScanCreateRangeScanConfig{Start: []byte("scan"), End: []byte("scanned\xff")},
			Snapshot: &gocbcore.RangeScanCreateSnapshotRequirements{VbUUID: token.VbUUID, SeqNo: token.SeqNo},
			Deadline: soon(),
		}, done)
	})
	if err != nil {
		return err
	}
	found := make(chan gocbcore.RangeScanItem, 1000)
	end, err := wait(func(done func(*gocbcore.RangeScanContinueResult, error)) (gocbcore.PendingOp, error) {
		take := func(items []gocbcore.RangeScanItem) {
			for _, item := range items {
				found <- item
			}
		}
		return scan.RangeScanContinue(gocbcore.RangeScanContinueOptions{Deadline: soon()}, take, done)
	})
	if err != nil {
		return err
	}
	close(found)
	for item := range found {
		if string(item.Key) == "scanned" {
			return all(want(string(item.Value) == `{"s":1}` && end.Complete, "item %+v, end %+v", item, end))
		}
	}
	return errors.New("the key was not among those scanned")
}

func (k *kvJudge) ping() error {
	got, err := wait(func(done func(*gocbcore.PingResult, error)) (gocbcore.PendingOp, error) {
		services := []gocbcore.ServiceType{gocbcore.MemdService, gocbcore.MgmtService}
		return k.agent.Ping(gocbcore.PingOptions{ServiceTypes: services, KVDeadline: soon(), MgmtDeadline: soon()}, done)
	})
	if err != nil {
		return err
	}
	for service, endpoints := range got.Services {
		for _, endpoint := range endpoints {
			if endpoint.Error != nil {
				return fmt.Errorf("service %d at %s: %w", service, endpoint.Endpoint, endpoint.Error)
			}
		}
	}
	return want(len(got.Services) == 2, "services %v", got.Services)
}

func (k *kvJudge) many() error {
	document := func(number int) (string, []byte) {
		return fmt.Sprintf("many:%d", number), []byte(fmt.Sprintf(`{"number":%d,"text":"%s"}`, number, strings.Repeat("x", number%300)))
	}
	write := func(number int) error {
		key, value := document(number)
		_, err := k.set(key, value, 0)
		return err
	}
	read := func(number int) error {
		key, value := document(number)
		got, err := k.get(key)
		if err != nil {
			return err
		}
		return want(bytes.Equal(got.Value, value), "%s is %q", key, got.Value)
	}
	if err := each(k.settings.count, write); err != nil {
		return err
	}
	return each(k.settings.count, read)
}
