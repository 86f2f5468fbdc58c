// A judge that is not ours: gocbcore against a node, or a cluster.
//
//	interop kv|dcp|moves|read -connect couchbase://127.0.0.1:11210 [flags]
//
// Each part prints a line `ok NAME` or `FAIL NAME: why`; the last line is `OK n parts` or `FAIL n of m parts`.
// The buckets must have the collections shop.orders and shop.returns.
package main

import (
	"bufio"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
)

const (
	opTimeout    = 20 * time.Second
	readyTimeout = 30 * time.Second
)

// Settings are what the command line says.
type Settings struct {
	connect, bucket, user, password, auth, ca string
	count                                     int
	history, kept                             bool
	// Of `read`: names of collections, the file of the position, and what is asked for.
	collections, position string
	reopen, quiet         int
	keysOnly, outOfOrder  bool
}

var errTimeout = errors.New("no answer in time")

// security is how agents log in.
func (s Settings) security() (gocbcore.SecurityConfig, error) {
	config := gocbcore.SecurityConfig{Auth: gocbcore.PasswordAuthProvider{Username: s.user, Password: s.password}}
	if s.auth != "" {
		config.AuthMechanisms = []gocbcore.AuthMechanism{gocbcore.AuthMechanism(s.auth)}
	}
	if strings.HasPrefix(s.connect, "couchbases://") {
		pem, err := os.ReadFile(s.ca)
		if err != nil {
			return config, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return config, fmt.Errorf("%s holds no certificate", s.ca)
		}
		config.UseTLS = true
		config.TLSRootCAProvider = func() *x509.CertPool { return roots }
	}
	return config, nil
}

// wait starts an operation and waits for its one answer.
func wait[T any](start func(done func(T, error)) (gocbcore.PendingOp, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	op, err := start(func(value T, err error) { answers <- answer{value, err} })
	if err != nil {
		var none T
		return none, err
	}
	select {
	case got := <-answers:
		return got.value, got.err
	case <-time.After(opTimeout):
		op.Cancel()
		var none T
		return none, errTimeout
	}
}

// Part is something that is tried; it fails with an error.
type Part struct {
	name string
	try  func() error
}

// run tries all parts, also after one has failed, and prints what came of them.
func run(parts []Part) bool {
	failed := 0
	for _, part := range parts {
		if err := tried(part); err != nil {
			failed++
			fmt.Printf("FAIL %s: %s\n", part.name, strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
		} else {
			fmt.Printf("ok %s\n", part.name)
		}
	}
	if failed > 0 {
		fmt.Printf("FAIL %d of %d parts\n", failed, len(parts))
	} else {
		fmt.Printf("OK %d parts\n", len(parts))
	}
	return failed == 0
}

func tried(part Part) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panicked: %v", panicked)
		}
	}()
	return part.try()
}

// all is the first error, if any.
func all(errs ...error) error {
	return errors.Join(errs...)
}

// want is an error unless the claim holds.
func want(holds bool, format string, values ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, values...)
}

// refused is an error unless err is the expected one.
func refused(err, expected error) error {
	return want(errors.Is(err, expected), "expected %q, got: %v", expected, err)
}

// order has something done to the node, and waits for it.
func order(action string) error {
	fmt.Println("DO " + action)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	return all(err, want(answer == "DONE\n", "nobody does %s", action))
}

func main() {
	var settings Settings
	flags := flag.NewFlagSet("interop", flag.ExitOnError)
	flags.StringVar(&settings.connect, "connect", "", "connection string")
	flags.StringVar(&settings.bucket, "bucket", "default", "bucket")
	flags.StringVar(&settings.user, "user", "Administrator", "user name")
	flags.StringVar(&settings.password, "password", "password", "password")
	flags.StringVar(&settings.auth, "auth", "", "SASL mechanism; empty for the library's own choice")
	flags.StringVar(&settings.ca, "ca", "", "file of the certificate authority, for couchbases://")
	flags.IntVar(&settings.count, "count", 1000, "documents")
	flags.BoolVar(&settings.history, "history", false, "the bucket keeps the history of its documents")
	flags.BoolVar(&settings.kept, "kept", false, "the node keeps its documents when it is restarted")
	flags.StringVar(&settings.collections, "collections", "", "of read: collections, separated by commas; empty for all")
	flags.StringVar(&settings.position, "position", "", "of read: file of the position")
	flags.IntVar(&settings.reopen, "reopen", 0, "of read: close the stream after so many changes, and open it again")
	flags.IntVar(&settings.quiet, "quiet", 2000, "of read: milliseconds without a message after which it ends")
	flags.BoolVar(&settings.keysOnly, "keys-only", false, "of read: without values")
	flags.BoolVar(&settings.outOfOrder, "out-of-order", false, "of read: take out-of-order snapshots")
	if len(os.Args) < 2 {
		fmt.Println("FAIL say kv, dcp, moves or read")
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:])
	programs := map[string]func(Settings) ([]Part, func(), error){
		"kv": kvParts, "dcp": dcpParts, "moves": movesParts, "read": readParts,
	}
	program := programs[os.Args[1]]
	if program == nil {
		fmt.Println("FAIL say kv, dcp, moves or read")
		os.Exit(2)
	}
	parts, end, err := program(settings)
	if err != nil {
		fmt.Printf("FAIL to begin: %v\n", err)
		os.Exit(1)
	}
	isFine := run(parts)
	end()
	if !isFine {
		os.Exit(1)
	}
}
